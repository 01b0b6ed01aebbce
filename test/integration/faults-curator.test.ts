/**
 * The Curator gone, silent, or sending nonsense, under traffic: the mesh does not feel it (C4.8, C4.11).
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { underTraffic, unharmed } from "../lab/fault.ts";
import { Lab } from "../lab/lab.ts";
import { soonMs, Stage } from "../lab/stage.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

test("a Curator that is gone is reported and missed by nobody", async () => {
  await using stage = await Stage.create(lab);
  const b = await stage.peer("b", 2);
  await stage.streaming();
  await stage.recorder.clear();
  const outcome = await underTraffic(stage, b, "Curator gone", async (fault) => {
    await fault.make(() => stage.curator[Symbol.asyncDispose]());
    await stage.problems((found) => found.includes("curator-unreachable -"), soonMs);
  });
  expect(outcome).toEqual(unharmed);
  expect(await stage.recorder.changes()).toEqual([]);
});
