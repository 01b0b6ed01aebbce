/** Lines of callers in the log of a Curator: how many each has, and what is told of those that were left out. */
import { expect, test } from "bun:test";
import type { NodeId } from "../../src/core/node.ts";
import { CallerLog } from "../../src/curator-server/caller-log.ts";
import { silentLogger, type LogFields } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";

const [a, b] = ["a" as NodeId, "b" as NodeId];

test("each node has 20 lines a minute, all addresses together as many, and what is left out is counted", async () => {
  const clock = new FakeClock();
  const lines: unknown[][] = [];
  const note = (message: string, { node, count }: LogFields = {}): void =>
    void lines.push([message, node, count]);
  const log = new CallerLog({ ...silentLogger, info: note, warn: note }, clock);
  const taken = (): unknown[][] => lines.splice(0);

  for (let line = 0; line < 30; line++) log.info(a, `did ${line}`, {});
  log.warn(a, "refused", {});
  expect(taken()).toEqual(Array.from({ length: 20 }, (_, line) => [`did ${line}`, "a", undefined]));
  log.warn(b, "refused", {});
  for (let line = 0; line < 25; line++) log.warn({ address: `192.0.2.${line}` }, "unknown", {});
  expect(taken()).toEqual([
    ["refused", "b", undefined],
    ...Array.from({ length: 20 }, (_, line) => ["unknown", `192.0.2.${line}`, undefined]),
  ]);

  await clock.advance(59_999);
  log.info(a, "later", {});
  expect(taken()).toEqual([]);
  await clock.advance(1);
  log.info(b, "did", {});
  expect(taken()).toEqual([
    ["Lines of one minute were left out", "a", 12],
    ["Lines of one minute were left out", undefined, 5],
    ["did", "b", undefined],
  ]);
  log.info(a, "did", {});
  expect(taken()).toEqual([["did", "a", undefined]]);
});

test("more callers than can be kept apart share what is left", () => {
  let lines = 0;
  const log = new CallerLog({ ...silentLogger, warn: () => void lines++ }, new FakeClock());
  for (let caller = 0; caller < 20_000; caller++) log.warn(`n${caller}` as NodeId, "refused", {});
  expect(lines).toBe(10_020);
});
