/**
 * Messages that come in one turn of the event loop: taken together, in order, none lost and few held.
 */
import { describe, expect, test } from "bun:test";
import { giveWay } from "../../src/async.ts";
import { gather } from "../../src/curator/gather.ts";
import { waitFor } from "../lab/wait.ts";

const roomy = 1_000;

/** Yields messages of so many bytes, "." being a turn of the loop; `said` is how many have been asked for. */
class Source {
  said = 0;
  ended = false;

  async *messages(script: string): AsyncGenerator<Uint8Array, void> {
    try {
      for (const each of script) {
        if (each === "!") throw new Error("the stream broke");
        if (each === ".") {
          // Longer than the one turn after which a portion is closed.
          await giveWay();
          await giveWay();
          continue;
        }
        this.said++;
        yield new Uint8Array(Number(each));
      }
    } finally {
      this.ended = true;
    }
  }
}

/** The lengths of the messages, portion by portion; and how it ended. */
async function portionsOf(script: string, limitBytes = roomy): Promise<string[]> {
  const seen: string[] = [];
  try {
    for await (const portion of gather(new Source().messages(script), limitBytes)) {
      seen.push(portion.map(({ length }) => length).join(""));
    }
  } catch (error) {
    seen.push(String(error));
  }
  return seen;
}

describe("gather()", () => {
  const cases = [
    { script: "", want: [] },
    { script: "1", want: ["1"] },
    { script: "123.45.6", want: ["123", "45", "6"] },
    { script: "123!", want: ["123", "Error: the stream broke"] },
    { script: "1.!", want: ["1", "Error: the stream broke"] },
    { script: "!", want: ["Error: the stream broke"] },
  ];
  test.each(cases)(
    'yields the messages of "$script" in the turns in which they came',
    async ({ script, want }) => {
      expect(await portionsOf(script)).toEqual(want);
    },
  );

  test("yields as much as it may hold and a message, however much there is", async () => {
    expect(await portionsOf("1234567", 6)).toEqual(["123", "45", "6", "7"]);
  });

  test("reads no further while nobody takes what it holds", async () => {
    const source = new Source();
    const portions = gather(source.messages("33333333"), 6);
    await portions.next();
    await waitFor(() => source.said === 4, "the second portion is held");
    for (let turn = 0; turn < 10; turn++) await giveWay();
    expect(source.said).toBe(4);
    await portions.return();
    await waitFor(() => source.ended, "the source is left");
  });
});
