/** What is told of a clock that somebody sets, and what goes on as if nothing had happened. */
import { expect, test } from "bun:test";
import { Backoff, Bell, streamBackoff } from "../src/async.ts";
import { watchTimeOfDay } from "../src/time-watch.ts";
import { FakeClock } from "./fakes/clock.ts";

const dayMs = 24 * 60 * 60_000;

test("watchTimeOfDay() tells once of each step and its direction, and nothing of a clock that is adjusted", async () => {
  const clock = new FakeClock();
  const lines: string[] = [];
  const take = (level: string) => (message: string, fields: unknown) =>
    lines.push(`${level} ${message.split(":", 1)[0]} ${JSON.stringify(fields)}`);
  const log = { debug: take("debug"), info: take("info"), warn: take("warn"), error: take("error") };
  const stop = new AbortController();
  const watching = watchTimeOfDay({ clock, log }, stop.signal);
  for (const byMs of [0, dayMs, 0, 500, -500, -2 * dayMs, 0, 1_999]) {
    clock.setTimeOfDay(byMs);
    await clock.advance(10_000);
  }
  stop.abort();
  await watching;
  expect(lines).toEqual([
    'info The time of day was set forward {"seconds":86400}',
    'warn The time of day was set back {"seconds":172800}',
  ]);
});

test.each([
  { name: "forward", byMs: dayMs },
  { name: "back", byMs: -dayMs },
])("a wait, and the backoff after it, last as long when the clock is set $name", async ({ byMs }) => {
  const clock = new FakeClock();
  const never = new AbortController().signal;
  const backoff = new Backoff(streamBackoff, clock);
  clock.nextRandom = 0.999;
  let ended = 0;
  const waits = (async () => {
    for (let tries = 0; tries < 3; tries++) {
      await clock.sleep(backoff.next(), never);
      ended++;
    }
    await new Bell().wait(1_000, never, clock);
    ended++;
  })();
  for (const [seconds, wanted] of [
    [0.4, 0],
    [0.1, 1],
    [0.9, 1],
    [0.1, 2],
    [2, 3],
    [1, 4],
  ] as const) {
    clock.setTimeOfDay(byMs);
    await clock.advance(seconds * 1_000);
    expect(ended).toBe(wanted);
  }
  await waits;
});
