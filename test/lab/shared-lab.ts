/**
 * A lab, and a scripted Curator in it, for all tests of a file: made before the first, gone after the last, also when
 * one of the two could not be made.
 *
 *     const shared = sharedLab();
 *     test("…", async () => {
 *       const machine = await shared.lab.machine("a");
 *       await Agent.start(machine, { curator: shared.curator.address, directory: await shared.lab.directory() });
 */
import { afterAll, beforeAll } from "bun:test";
import { scriptedCurator } from "./agent.ts";
import { Lab } from "./lab.ts";

/** Both throw before the first test begins. */
export interface SharedLab {
  readonly lab: Lab;
  readonly curator: Awaited<ReturnType<typeof scriptedCurator>>;
}

/** To be called once, outside of every test. */
export function sharedLab(): SharedLab {
  let lab: Lab | undefined;
  let curator: SharedLab["curator"] | undefined;
  beforeAll(async () => {
    lab = await Lab.create();
    curator = await scriptedCurator(lab);
  });
  afterAll(async () => {
    try {
      await curator?.[Symbol.asyncDispose]();
    } finally {
      await lab?.dispose();
    }
  });
  return {
    get lab() {
      return there(lab);
    },
    get curator() {
      return there(curator);
    },
  };
}

function there<T>(made: T | undefined): T {
  if (made === undefined) throw new Error("the lab is made before the first test, not before");
  return made;
}
