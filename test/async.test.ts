/** A clock that runs faster than another: what is shorter, and what is not. A source that is begun before it is read. */
import { expect, test } from "bun:test";
import { begin, fasterClock } from "../src/async.ts";
import { FakeClock } from "./fakes/clock.ts";

test("fasterClock() makes waits and the time between two looks shorter, and leaves the time of day alone", async () => {
  const base = new FakeClock();
  base.nextRandom = 0.25;
  const clock = fasterClock(base, 20);
  const never = new AbortController().signal;
  const slept = clock.sleep(60_000, never);
  const before = clock.nowMs();
  await base.advance(3_000);
  await slept;
  expect(base.sleeps).toEqual([3_000]);
  expect(clock.nowMs() - before).toBe(60_000);
  expect(clock.wallTime()).toEqual(new Date("2026-01-01T00:00:03Z"));
  expect(clock.random()).toBe(0.25);
});

test("fasterClock() ends a wait when it is told to", async () => {
  const stop = new AbortController();
  const slept = fasterClock(new FakeClock(), 20).sleep(60_000, stop.signal);
  stop.abort();
  await slept;
});

test("begin() starts a source before anybody reads it, and leaves nothing of it out", async () => {
  const steps: string[] = [];
  async function* source(): AsyncGenerator<number> {
    steps.push("begun");
    yield 1;
    steps.push("asked for more");
    yield 2;
  }
  const items = begin(source());
  expect(steps).toEqual(["begun"]);
  await Promise.resolve();
  expect(steps).toEqual(["begun"]);
  expect(await Array.fromAsync(items)).toEqual([1, 2]);
});

test("begin() keeps the failure of a source for its reader", async () => {
  const failing = { next: (): Promise<IteratorResult<number>> => Promise.reject(new Error("no source")) };
  const items = begin({ [Symbol.asyncIterator]: () => failing });
  await new Promise((resolve) => setImmediate(resolve));
  const found = await Array.fromAsync(items).catch(String);
  expect(found).toBe("Error: no source");
});
