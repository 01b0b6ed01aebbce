/** Lines of callers in the log of a Curator: how many each has, and what is told of those that were left out. */
import { expect, test } from "bun:test";
import { Status } from "nice-grpc-common";
import type { NodeId } from "../../src/core/node.ts";
import { CallerLog, RefusalLog } from "../../src/curator-server/caller-log.ts";
import { silentLogger, type LogFields } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { startCluster } from "./cluster.ts";

const [a, b] = ["a" as NodeId, "b" as NodeId];
const leftOut = "Lines of one minute were left out";

/** A log on a clock of its own, and what came into it since it was last asked. */
function callerLog(): { clock: FakeClock; log: CallerLog; taken: () => readonly unknown[] } {
  const clock = new FakeClock();
  const lines: unknown[][] = [];
  const note = (message: string, { node, count }: LogFields = {}): void =>
    void lines.push([message, node, count]);
  const log = new CallerLog({ ...silentLogger, info: note, warn: note }, clock);
  return { clock, log, taken: () => lines.splice(0) };
}

test("each node has 20 lines a minute, all addresses together as many, and what is left out is counted", async () => {
  const { clock, log, taken } = callerLog();
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
    [leftOut, "a", 12],
    [leftOut, undefined, 5],
    ["did", "b", undefined],
  ]);
  log.info(a, "did", {});
  expect(taken()).toEqual([["did", "a", undefined]]);
});

test("one address has 5 of the lines of all addresses, and takes none from other addresses, nor from nodes", async () => {
  const { clock, log, taken } = callerLog();
  for (let line = 0; line < 1_000; line++) log.warn({ address: "192.0.2.1" }, `scan ${line}`, {});
  log.warn({ address: "192.0.2.2" }, "bad certificate", {});
  log.warn(a, "refused", {});
  log.info(b, "did", {});
  expect(taken()).toEqual([
    ...Array.from({ length: 5 }, (_, line) => [`scan ${line}`, "192.0.2.1", undefined]),
    ["bad certificate", "192.0.2.2", undefined],
    ["refused", "a", undefined],
    ["did", "b", undefined],
  ]);
  await clock.advance(60_000);
  expect(taken()).toEqual([[leftOut, undefined, 995]]);
  log.warn({ address: "192.0.2.1" }, "scan", {});
  expect(taken()).toEqual([["scan", "192.0.2.1", undefined]]);
});

test("more callers than can be kept apart share what is left", () => {
  let lines = 0;
  const log = new CallerLog({ ...silentLogger, warn: () => void lines++ }, new FakeClock());
  for (let caller = 0; caller < 20_000; caller++) log.warn(`n${caller}` as NodeId, "refused", {});
  expect(lines).toBe(10_020);
});

const refusal = (message: string) => ({ code: Status.UNAUTHENTICATED, message }) as const;

test.each([
  {
    name: "an address, after a scan from 20 others",
    caller: { address: "192.0.2.7" },
    spend: (_log: CallerLog, refusals: RefusalLog) => {
      for (let scanner = 0; scanner < 20; scanner++)
        refusals.add({ address: `198.51.100.${scanner}` }, "call", refusal("unknown"));
    },
    want: [
      [leftOut, undefined, 6],
      ["refused", "192.0.2.7", undefined],
    ],
  },
  {
    name: "a node, after 20 lines of what it did",
    caller: a,
    spend: (log: CallerLog) => {
      for (let line = 0; line < 20; line++) log.info(a, `did ${line}`, {});
    },
    want: [
      [leftOut, "a", 6],
      ["refused", "a", undefined],
    ],
  },
  {
    name: "a node, after it was refused for 20 other things, the last of which was logged",
    caller: a,
    spend: (_log: CallerLog, refusals: RefusalLog) => {
      for (let line = 0; line < 20; line++) refusals.add(a, "call", refusal(`other ${line}`));
    },
    want: [
      [leftOut, "a", 6],
      ["refused", "a", undefined],
    ],
  },
  {
    name: "a node that had lines left",
    caller: a,
    spend: () => {},
    want: [["refused", "a", undefined]],
  },
])("a refusal that comes again every 10 s is logged, and once: of $name", async ({ caller, spend, want }) => {
  const { clock, log, taken } = callerLog();
  const refusals = new RefusalLog(log);
  spend(log, refusals);
  taken();
  for (let attempt = 0; attempt < 30; attempt++) {
    refusals.add(caller, "call", refusal("refused"));
    await clock.advance(10_000);
  }
  expect(taken()).toEqual(want);
});

test("what is left out is told when its minute is over, though nobody has anything more to say", async () => {
  const { clock, log, taken } = callerLog();
  for (let line = 0; line < 22; line++) log.info(a, "did", {});
  await clock.advance(30_000);
  for (let line = 0; line < 23; line++) log.warn({ address: `192.0.2.${line}` }, "refused", {});
  expect(taken()).toHaveLength(40);
  await clock.advance(29_999);
  expect(taken()).toEqual([]);
  await clock.advance(1);
  expect(taken()).toEqual([[leftOut, "a", 2]]);
  await clock.advance(30_000);
  expect(taken()).toEqual([[leftOut, undefined, 3]]);
  expect(clock.sleeping).toBe(0);
});

test("what is left out is told at the end, and nothing waits after that", async () => {
  const { clock, log, taken } = callerLog();
  for (let line = 0; line < 22; line++) log.info(a, "did", {});
  expect(taken()).toHaveLength(20);
  log.close();
  expect(taken()).toEqual([[leftOut, "a", 2]]);
  log.close();
  log.info(a, "did", {});
  await clock.advance(60_000);
  expect([taken(), clock.sleeping]).toEqual([[], 0]);
});

test("a Curator that stops tells what it left out", async () => {
  const lines: unknown[][] = [];
  const warn = (message: string, { node, count }: LogFields = {}): void =>
    void lines.push([message, node, count]);
  const at = await startCluster({ log: { ...silentLogger, warn } });
  try {
    for (let line = 0; line < 23; line++) await at.report("a", `no address ${line}`);
    expect(lines).toHaveLength(20);
  } finally {
    await at.stop();
  }
  expect(lines.slice(20)).toEqual([[leftOut, "a", 3]]);
});
