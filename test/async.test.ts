/** A clock that runs faster than another: what is shorter, and what is not. */
import { expect, test } from "bun:test";
import { fasterClock } from "../src/async.ts";
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
