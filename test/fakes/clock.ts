/**
 * A clock that tests turn by hand: `advance(ms)` wakes every sleeper that is due, in the order of their times.
 *
 * Real I/O goes on at its own pace beside it, so a test that mixes both waits for the state it wants
 * (`lab/wait.ts`) and turns the clock only to make waits of the program end.
 */
import type { Clock } from "../../src/async.ts";
import { waitFor } from "../lab/wait.ts";

interface Sleeper {
  readonly dueMs: number;
  readonly wake: () => void;
}

export class FakeClock implements Clock {
  /** How long every sleep so far was asked to last, oldest first: what a backoff really did. */
  readonly sleeps: number[] = [];
  /** What `random()` returns; set it to 0.999 for the longest waits, to 0 for none. */
  nextRandom = 0.5;
  #nowMs = 0;
  #setMs = 0;
  readonly #startMs: number;
  readonly #sleepers = new Set<Sleeper>();

  constructor(start = new Date("2026-01-01T00:00:00Z")) {
    this.#startMs = start.getTime();
  }

  nowMs(): number {
    return this.#nowMs;
  }

  wallTime(): Date {
    return new Date(this.#startMs + this.#nowMs + this.#setMs);
  }

  timeSetMs(): number {
    return this.#setMs;
  }

  /** Sets the time of day forward or back, as an operator or NTP does; no time passes. */
  setTimeOfDay(byMs: number): void {
    this.#setMs += byMs;
  }

  random(): number {
    return this.nextRandom;
  }

  sleep(ms: number, signal: AbortSignal): Promise<void> {
    this.sleeps.push(ms);
    return new Promise((resolve) => {
      if (signal.aborted || ms <= 0) return resolve();
      const wake = (): void => {
        this.#sleepers.delete(sleeper);
        signal.removeEventListener("abort", wake);
        resolve();
      };
      const sleeper: Sleeper = { dueMs: this.#nowMs + ms, wake };
      this.#sleepers.add(sleeper);
      signal.addEventListener("abort", wake, { once: true });
    });
  }

  /** How many sleep now. */
  get sleeping(): number {
    return this.#sleepers.size;
  }

  /** Milliseconds until the next sleeper is due; undefined when nobody sleeps. */
  get untilNextMs(): number | undefined {
    return this.#next() === undefined ? undefined : (this.#next()?.dueMs ?? 0) - this.#nowMs;
  }

  /** Turns the clock on, stopping at each sleeper's time and letting what it wakes run before going on. */
  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms;
    // First lets those fall asleep that are on their way to it.
    await settle();
    for (;;) {
      const next = this.#next();
      if (next === undefined || next.dueMs > endMs) break;
      this.#nowMs = next.dueMs;
      next.wake();
      await settle();
    }
    this.#nowMs = endMs;
  }

  /** Waits, in real time, until at least `count` sleep. */
  async untilSleeping(count = 1): Promise<void> {
    await waitFor(() => this.#sleepers.size >= count, `${count} sleeping`);
  }

  #next(): Sleeper | undefined {
    let next: Sleeper | undefined;
    for (const each of this.#sleepers) if (next === undefined || each.dueMs < next.dueMs) next = each;
    return next;
  }
}

/** Lets everything run that needs no time and no I/O. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
}
