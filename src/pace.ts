/**
 * When the loop of pull turns: at once when something changed, but not faster than a flood may make it (C4.9), and again
 * after a while when something could not be done (C4.10), at every resync, and in any case at the pulse of the health.
 */
import { applyBackoff, Backoff, Bell, giveWay, pulseMs, type Clock } from "./async.ts";

/** At most ten applies a second in a lasting flood of changes (C4.9). */
const minApplyIntervalMs = 100;
/**
 * In a lasting flood the loop rests twice as long as a turn took, up to this long: a node that changes all the time must
 * not keep the processor of a large mesh's every machine busy.
 */
const maxRestMs = 5_000;
/** A flood lasts when so many turns in a row were asked for before they were due. */
const lastingTurns = 3;
/** More changes than this since the last turn are a burst, of which more is on its way. */
const burstChanges = 8;
/** A burst is over when nothing came for this long, and is not waited for longer than that. */
const burstQuietMs = 4;
const burstLimitMs = 100;
/** So long the event loop is let alone to read what has come to this machine. */
const unreadMs = 1;
/** While something fails a hint is followed no sooner than this after the last turn: C4.12 wants drift mended in 2 s. */
const failingHintMs = 1_500;

/** What turns. */
export interface Turning {
  readonly turn: () => Promise<void>;
  /** Does what can be done of the next turn before it: called while more of a burst is on its way. */
  readonly prepare: () => void;
  /** When to turn without a poke, for reasons of its own. */
  readonly dueMs: () => number | undefined;
}

export class Pace {
  readonly #clock: Clock;
  readonly #resyncMs: number;
  readonly #bell = new Bell();
  readonly #backoff: Backoff;
  #resyncAtMs = 0;
  /** Set while something could not be done: when to try again. */
  #retryAtMs: number | undefined;
  /** Not before this time, so that a flood is merged. */
  #nextTurnMs = 0;
  #lastTurnMs = 0;
  /** Turns in a row that were asked for before they were due. */
  #hurriedTurns = 0;
  /** Since the last turn began. */
  #changes = 0;
  #hinted = false;

  constructor(resyncMs: number, clock: Clock) {
    this.#clock = clock;
    this.#resyncMs = resyncMs;
    this.#backoff = new Backoff(applyBackoff, clock);
  }

  /** When the loop last turned, or began, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  get isResyncDue(): boolean {
    return this.#clock.nowMs() >= this.#resyncAtMs;
  }

  /** The host is read now: the next time it is due is a resync later. */
  noteResync(): void {
    this.#resyncAtMs = this.#clock.nowMs() + this.#resyncMs;
  }

  /** There is a reason to turn. */
  poke(): void {
    this.#bell.poke();
  }

  /** So many nodes came or went at once: more may be on their way. */
  noteChanges(count: number): void {
    this.#changes += count;
    this.#bell.poke();
  }

  /** The kernel told of something. */
  noteHint(): void {
    this.#hinted = true;
    this.#bell.poke();
  }

  /** What a turn was to do was done, or is to be tried again. */
  noteOutcome(isDone: boolean): void {
    if (isDone) this.#backoff.reset();
    this.#retryAtMs = isDone ? undefined : this.#clock.nowMs() + this.#backoff.next();
  }

  /** The agent begins: until its first turn it is not late. */
  begin(): void {
    this.#lastTurnMs = this.#clock.nowMs();
  }

  /** Turns until `signal` aborts, for the first time at once. */
  async run({ turn, prepare, dueMs }: Turning, signal: AbortSignal): Promise<void> {
    const clock = this.#clock;
    // Whatever rang before is seen by the first turn.
    this.#bell.clear();
    let isStart = true;
    while (!signal.aborted) {
      const startMs = clock.nowMs();
      this.#hinted = false;
      this.#changes = 0;
      await turn();
      const endMs = clock.nowMs();
      this.#lastTurnMs = endMs;
      const isFlood = this.#hurriedTurns >= lastingTurns;
      const restMs = isFlood ? Math.min((endMs - startMs) * 2, maxRestMs) : 0;
      // The picture that comes right after the last file was applied is no flood.
      this.#nextTurnMs = isStart ? endMs : Math.max(startMs + minApplyIntervalMs, endMs + restMs);
      isStart = false;
      const nextMs = Math.min(this.#resyncAtMs, this.#retryAtMs ?? Infinity, dueMs() ?? Infinity);
      await this.#bell.wait(Math.min(Math.max(0, nextMs - clock.nowMs()), pulseMs), signal, clock);
      // What fails makes hints of its own (a link that comes and goes again): they must not take the place of the backoff.
      if (this.#hinted && this.#retryAtMs !== undefined) {
        this.#nextTurnMs = Math.max(this.#nextTurnMs, endMs + failingHintMs);
      }
      const early = this.#nextTurnMs - clock.nowMs();
      this.#hurriedTurns = early > 0 ? this.#hurriedTurns + 1 : 0;
      if (early > 0) await clock.sleep(early, signal);
      else await this.#gatherBurst(prepare, signal);
      // Whatever rang meanwhile is seen by the turn that comes now.
      this.#bell.clear();
    }
  }

  /**
   * Lets what has come in the same instant be heard, and a burst come to its end, so that one turn serves all of it; what
   * has come is prepared meanwhile.
   */
  async #gatherBurst(prepare: () => void, signal: AbortSignal): Promise<void> {
    const clock = this.#clock;
    const startMs = clock.nowMs();
    await giveWay();
    let before = burstChanges;
    while (this.#changes > before && clock.nowMs() - startMs < burstLimitMs && !signal.aborted) {
      before = this.#changes;
      const quietMs = clock.nowMs() + burstQuietMs;
      prepare();
      // What came while that took its time is to be read still, and two turns of the event loop later it is heard.
      await clock.sleep(Math.max(quietMs - clock.nowMs(), unreadMs), signal);
      await giveWay();
      await giveWay();
    }
  }
}
