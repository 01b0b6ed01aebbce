/** A pipe that is looked into now and then is not waited for when its program has ended. */
import { describe, expect, spyOn, test } from "bun:test";
import { writeSync } from "node:fs";
import { openLibc } from "../../src/host/libc.ts";
import { PacedPipe } from "../../src/host/paced-pipe.ts";

describe("PacedPipe", () => {
  test("takes what is left without a pause when the program has ended", async () => {
    using libc = openLibc();
    using pipe = new PacedPipe(libc);
    const sleep = spyOn(Bun, "sleep");
    try {
      const { promise: ended, resolve } = Promise.withResolvers<void>();
      const pieces: string[] = [];
      const reading = pipe.read((piece) => void pieces.push(Buffer.from(piece).toString()), ended);
      writeSync(pipe.writer, "the last words");
      pipe.closeWriter();
      resolve();
      await reading;
      // The one pause is that in which the program ended.
      expect({ pieces, pauses: sleep.mock.calls.length }).toEqual({ pieces: ["the last words"], pauses: 1 });
    } finally {
      sleep.mockRestore();
    }
  });
});
