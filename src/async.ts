/**
 * What every loop of the agent waits with: a value that can be watched, a sleep that an AbortSignal ends,
 * and the backoff schedule.
 *
 * Level, not edge: a `Value` keeps only the newest state. A reader that was busy sees the newest when it
 * comes back and never a queue of old ones, so a slow reader costs no memory.
 */
import { uptime } from "node:os";

/** Where time comes from, so that tests can turn it by hand. `nowMs` is monotonic: a clock set back does not move it. */
export interface Clock {
  /** Milliseconds of a clock that never jumps; its zero means nothing. */
  nowMs(): number;
  /** Time of day, for what people read. */
  wallTime(): Date;
  /**
   * Milliseconds that the time of day is ahead of a clock which nobody sets and which goes on while the machine sleeps:
   * what it grows by, to a second, somebody has set the time of day forward. Adjusted little by little it moves too,
   * less than a second in half an hour.
   */
  timeSetMs(): number;
  /** Resolves after `ms`, or at once when `signal` aborts. Never rejects. */
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  /** A number from 0 (inclusive) to 1 (exclusive), for jitter. */
  random(): number;
}

export const systemClock: Clock = {
  nowMs: () => performance.now(),
  wallTime: () => new Date(),
  // Not by performance.now(), which stands still while the machine sleeps.
  timeSetMs: () => Date.now() - uptime() * 1_000,
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      if (signal.aborted) return resolve();
      const done = (): void => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", done, { once: true });
    }),
  random: Math.random,
};

/**
 * A clock that runs so many times as fast: every wait is that much shorter. The time of day stays that of `clock`, so
 * what people read is true. For tests of what takes minutes or a day.
 */
export function fasterClock(clock: Clock, times: number): Clock {
  return {
    nowMs: () => clock.nowMs() * times,
    wallTime: () => clock.wallTime(),
    timeSetMs: () => clock.timeSetMs(),
    sleep: (ms, signal) => clock.sleep(ms / times, signal),
    random: () => clock.random(),
  };
}

/** A value that changes over time and can be followed; the public face of `Value`. */
export interface Watched<T> {
  /** The newest value. */
  get(): T;
  /** Yields the value at once, then the newest after each change, until `signal` aborts. Values between are left out. */
  watch(signal: AbortSignal): AsyncIterable<T>;
}

/** A `Watched` that its owner sets. */
export class Value<T> implements Watched<T> {
  #current: T;
  #version = 0;
  readonly #waiting = new Set<() => void>();

  constructor(initial: T) {
    this.#current = initial;
  }

  get(): T {
    return this.#current;
  }

  /** Takes the new value and wakes every watcher, also when it equals the old one. */
  set(next: T): void {
    this.#current = next;
    this.#version++;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const wake of waiting) wake();
  }

  async *watch(signal: AbortSignal): AsyncIterable<T> {
    let seen = -1;
    while (!signal.aborted) {
      if (seen !== this.#version) {
        seen = this.#version;
        yield this.#current;
        continue;
      }
      await new Promise<void>((resolve) => {
        const wake = (): void => {
          this.#waiting.delete(wake);
          signal.removeEventListener("abort", wake);
          resolve();
        };
        this.#waiting.add(wake);
        signal.addEventListener("abort", wake, { once: true });
      });
    }
  }
}

/**
 * Wakes one sleeping loop. `poke()` while nobody waits is remembered once, so a reason to look again is
 * never lost between looking and waiting.
 */
export class Bell {
  #rung = false;
  #wake: (() => void) | undefined;

  poke(): void {
    this.#rung = true;
    this.#wake?.();
  }

  /** Forgets a poke that nobody has waited for yet: for a loop that looks at everything now. */
  clear(): void {
    this.#rung = false;
  }

  /**
   * Resolves at the next poke (or the one not yet seen), after `timeoutMs`, or when `signal` aborts: with whether it was
   * a poke. Never rejects.
   */
  async wait(timeoutMs: number, signal: AbortSignal, clock: Clock): Promise<boolean> {
    if (this.#rung || signal.aborted) return this.#take();
    const stop = new AbortController();
    this.#wake = () => stop.abort();
    const end = AbortSignal.any([signal, stop.signal]);
    if (Number.isFinite(timeoutMs)) await clock.sleep(timeoutMs, end);
    else await aborted(end);
    this.#wake = undefined;
    return this.#take();
  }

  #take(): boolean {
    const rung = this.#rung;
    this.#rung = false;
    return rung;
  }
}

/** Lets everything else that waits have its turn, as one does between the parts of a long computation. */
export function giveWay(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** The items of a source that is begun at once, not when the first one is asked for. For one reader, who may come later. */
export function begin<T>(source: AsyncIterable<T>): AsyncIterable<T> {
  const items = source[Symbol.asyncIterator]();
  let first: Promise<IteratorResult<T>> | undefined = items.next();
  // Told to the reader.
  first.catch(() => {});
  const next = (): Promise<IteratorResult<T>> => {
    const given = first ?? items.next();
    first = undefined;
    return given;
  };
  return { [Symbol.asyncIterator]: () => ({ next }) };
}

/** Resolves when the signal aborts. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Every loop turns at least this often, so that one that hangs can be told from one that rests. */
export const pulseMs = 20_000;

export interface BackoffSchedule {
  readonly firstMs: number;
  readonly capMs: number;
}

/** Streams are tried again after 0.5 s doubling to 15 s, with full jitter. */
export const streamBackoff: BackoffSchedule = { firstMs: 500, capMs: 15_000 };
/** Every refusal of an announcement is retried at most every 60 s. */
export const announceBackoff: BackoffSchedule = { firstMs: 500, capMs: 60_000 };
/** What a Curator refuses by itself, the rest being announced: on top of half a minute, up to ten minutes. */
export const refusedPrefixBackoff: BackoffSchedule = { firstMs: 30_000, capMs: 570_000 };
/** A node that was removed from the cluster tries rarely: only somebody who lets it in again changes the answer. */
export const removedBackoff: BackoffSchedule = { firstMs: 10_000, capMs: 60_000 };
/** Trying again what the host refused: quick at first, since a taken port or a full disk is noticed by people. */
export const applyBackoff: BackoffSchedule = { firstMs: 250, capMs: 15_000 };

/**
 * Capped exponential backoff with full jitter: the wait before try n is random between 0 and
 * min(cap, first * 2^n), so that a thousand agents that lost one Curator do not come back in step.
 */
export class Backoff {
  #failures = 0;
  readonly #schedule: BackoffSchedule;
  readonly #clock: Clock;

  constructor(schedule: BackoffSchedule, clock: Clock) {
    this.#schedule = schedule;
    this.#clock = clock;
  }

  /** Milliseconds to wait after one more failure. */
  next(): number {
    const ceiling = Math.min(
      this.#schedule.capMs,
      this.#schedule.firstMs * 2 ** Math.min(this.#failures, 30),
    );
    this.#failures++;
    return this.#clock.random() * ceiling;
  }

  reset(): void {
    this.#failures = 0;
  }
}
