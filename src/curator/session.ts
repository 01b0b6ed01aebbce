/**
 * What is done with one connection to one Curator: the watch stream that decides, beside it perhaps one that is to take
 * its place, and the question who leads.
 *
 * A stream is replaced when tombstones may have been lost (C2): after a day, and when the follower asks for it. The new
 * stream runs beside the old one, on the same connection, until its picture is full. A session never tries again: when
 * no stream is left it has ended, and says why.
 */
import { Backoff, type BackoffSchedule, type Bell, type Clock } from "../async.ts";
import type { NamedCurator } from "../core/curators.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import {
  type CuratorConnection,
  type DecodedEvent,
  isConnectionLost,
  isEventTooLarge,
  isRemoved,
  isUnimplemented,
} from "./connection.ts";
import type { Handoff } from "./handoff.ts";
import { type LeaderJudge, LeaderQuestion } from "./leader-question.ts";

/** What the consumer of all streams is told, one after the other. */
export type StreamEvent =
  /** A stream was opened. `replaces`: another one goes on until this one's picture is full. */
  | { readonly kind: "opened"; readonly stream: number; readonly address: string; readonly replaces?: number }
  | { readonly kind: "event"; readonly stream: number; readonly event: DecodedEvent }
  /** No more events of this stream. */
  | { readonly kind: "closed"; readonly stream: number };

/** Tombstones may have been lost without any sign, so every stream is replaced after this time at the latest (C2). */
const streamLifeMs = 24 * 60 * 60_000;
/** A stream that has brought nothing by then is given up: keepalive alone cannot tell a slow Curator from a stuck one. */
const firstEventMs = 10 * 60_000;
/** A stream beside the running one that has no full picture by then is given up; the slowest one measured took 85 s. */
const replacementLimitMs = 10 * 60_000;
/** Between attempts to open a stream beside a running one: nothing is lost meanwhile, and a backlog costs the Curator. */
const replacementBackoff: BackoffSchedule = { firstMs: 5_000, capMs: 60_000 };
/** A stream that lasted so long was part of no endless exchange of streams that end at once. */
const steadyMs = 60_000;

/** The follower as its sessions see it. */
export interface SessionOwner extends LeaderJudge {
  /** Rings when a reopening was asked for. */
  readonly reopenBell: Bell;
  nextNumber(): number;
  askReopen(delayMs: number): void;
  /** When the next reopening is due. */
  nextReopenMs(): number;
  /** Forgets the reopenings that are due by now. */
  takeReopens(nowMs: number): void;
  /** The Curator has taken the stream that decides. */
  onTaken(connection: CuratorConnection): void;
  /** An event came on the stream that decides. */
  onEvent(fullPicture: boolean): void;
  /** The stream that decides ended, and the one beside it goes on in its place, taken by the Curator or not yet. */
  onSuccession(next: { readonly taken: boolean; readonly full: boolean }): void;
}

export interface SessionParts {
  readonly clock: Clock;
  readonly log: Logger;
  readonly address: string;
  readonly connection: CuratorConnection;
  readonly out: Handoff<StreamEvent>;
  readonly follower: SessionOwner;
}

interface Stream {
  readonly number: number;
  readonly stop: AbortController;
  readonly openedMs: number;
  /** When it is to be replaced; when it is given up while it is itself to replace another. */
  renewAtMs: number;
  /** No event has come yet. */
  silent: boolean;
  full: boolean;
  /** Settled when the consumer has been told of it. */
  told?: Promise<void>;
}

/**
 * One connection with the stream that decides (`main`) and perhaps one beside it that is to take its place
 * (`replacement`). Ends when neither is left.
 */
export class Session {
  /** The Curator has answered. */
  taken = false;
  broughtEvent = false;
  /** Why the stream that ended last did so. */
  reason = "";
  error: unknown;
  /** It was an event that is too large. */
  tooLarge = false;
  readonly #given: SessionParts;
  readonly #replacementBackoff: Backoff;
  readonly #pumps = new Set<Promise<void>>();
  readonly #openedMs: number;
  readonly #question: LeaderQuestion;
  /** The stream was left for the leader. */
  #left = false;
  #hadFullPicture = false;
  #main: Stream | undefined;
  #replacement: Stream | undefined;

  constructor(given: SessionParts) {
    this.#given = given;
    this.#replacementBackoff = new Backoff(replacementBackoff, given.clock);
    this.#openedMs = given.clock.nowMs();
    this.#question = new LeaderQuestion({ ...given, onOther: (leader) => this.#leaveFor(leader) });
  }

  /** Another Curator that leads, by what this one says. */
  get leader(): NamedCurator | undefined {
    // One that has served and whose stream ended is tried again itself: who leads is asked anew.
    return this.broughtEvent && !this.#left ? undefined : this.#question.leader;
  }

  /** Why the leader that it names is not followed, to be set behind `reason`. */
  get leaderReason(): string {
    return this.#question.reason;
  }

  /** It ended as streams of a healthy Curator do, so the next one may come soon. */
  get isSteady(): boolean {
    // What came before an event that is too large comes again each time: it must not make us quick. Nor must an event
    // or two before each end, nor two Curators that each name the other.
    if (this.tooLarge || !this.broughtEvent) return false;
    if (this.#hadFullPicture && !this.#left) return true;
    return this.#given.clock.nowMs() - this.#openedMs >= steadyMs;
  }

  /** It served, and there is reason to try another address before this one. */
  get isBadFirst(): boolean {
    return isConnectionLost(this.error) || (!this.isSteady && !this.#left);
  }

  /** Ends it: its connection cannot be used any more, whatever gRPC thinks of it. */
  abandon(reason: string): void {
    this.reason = reason;
    this.#replacement?.stop.abort();
    this.#main?.stop.abort();
  }

  async run(signal: AbortSignal): Promise<void> {
    const ended = new AbortController();
    const end = AbortSignal.any([signal, ended.signal]);
    this.#main = this.#newStream(streamLifeMs);
    this.#start(this.#main, end);
    const beside = [this.#renew(end), this.#question.run(end)];
    // A stream beside the others joins while they run.
    while (this.#pumps.size > 0) await Promise.all(this.#pumps);
    if (!this.broughtEvent && isUnimplemented(this.error)) await this.#question.hear(end);
    ended.abort();
    await Promise.all(beside);
    this.#given.connection.close();
  }

  /** Leaves the Curator for the one that it names as leader. */
  #leaveFor({ address: leader, nodeId: node }: NamedCurator): void {
    if (this.#main === undefined) return;
    const { address, log } = this.#given;
    log.info("Leaving a Curator for the leader that it names", { curator: address, leader, node });
    this.#left = true;
    this.#replacement?.stop.abort();
    this.#main.stop.abort();
  }

  #newStream(lifeMs: number): Stream {
    const { clock, follower } = this.#given;
    const nowMs = clock.nowMs();
    return {
      number: follower.nextNumber(),
      stop: new AbortController(),
      openedMs: nowMs,
      renewAtMs: nowMs + jittered(lifeMs, clock),
      silent: true,
      full: false,
    };
  }

  #start(stream: Stream, end: AbortSignal): void {
    const pump = this.#pump(stream, AbortSignal.any([end, stream.stop.signal])).finally(() =>
      this.#pumps.delete(pump),
    );
    this.#pumps.add(pump);
  }

  /** Carries the events of one stream to the consumer until it ends. */
  async #pump(stream: Stream, signal: AbortSignal): Promise<void> {
    const { address, connection, out, log } = this.#given;
    let reason = `Curator "${address}" ended the stream`;
    let failure: unknown;
    let tooLarge = false;
    try {
      for await (const event of connection.watchNodes(signal, () => this.#onTaken(stream))) {
        this.#onTaken(stream);
        await stream.told;
        const full = event.lastBacklogged && !stream.full;
        stream.full ||= event.lastBacklogged;
        stream.silent = false;
        this.#hadFullPicture ||= full;
        this.broughtEvent = true;
        if (stream === this.#main) this.#given.follower.onEvent(stream.full);
        await out.put({ kind: "event", stream: stream.number, event });
        if (full && stream === this.#replacement) this.#takeOver(stream);
      }
    } catch (error) {
      // What helps a node that was removed is told with the problem; the Curator's words would tell it in another form.
      reason = isRemoved(error)
        ? `Curator "${address}" does not know this node (NOT_FOUND)`
        : messageOf(error);
      failure = error;
      tooLarge = isEventTooLarge(error);
    }
    if (!signal.aborted) {
      this.reason = reason;
      this.error = failure;
      this.tooLarge = tooLarge;
      if (stream.told !== undefined) log.info("A watch stream ended", { curator: address, reason });
    }
    this.#leave(stream, signal);
    if (stream.told === undefined) return;
    await stream.told;
    await out.put({ kind: "closed", stream: stream.number });
  }

  /** The Curator answers on this stream: from here on it exists for the consumer. */
  #onTaken(stream: Stream): void {
    if (stream.told !== undefined) return;
    const { address, connection, out, follower, log } = this.#given;
    const replaces = stream === this.#replacement ? this.#main?.number : undefined;
    stream.told = out.put({
      kind: "opened",
      stream: stream.number,
      address,
      ...(replaces !== undefined && { replaces }),
    });
    if (stream !== this.#main) return;
    this.taken = true;
    log.info("Watching the nodes of a Curator", { curator: address });
    follower.onTaken(connection);
  }

  /** The picture of the stream beside is full: it decides from now on. */
  #takeOver(stream: Stream): void {
    const old = this.#main;
    this.#main = stream;
    this.#replacement = undefined;
    stream.renewAtMs = stream.openedMs + jittered(streamLifeMs, this.#given.clock);
    this.#replacementBackoff.reset();
    this.#given.follower.onEvent(true);
    old?.stop.abort();
  }

  /** A stream has ended, for whatever reason. */
  #leave(stream: Stream, signal: AbortSignal): void {
    const { follower } = this.#given;
    if (stream === this.#main) {
      this.#main = this.#replacement;
      this.#replacement = undefined;
      if (this.#main === undefined) return;
      this.#main.renewAtMs = this.#main.openedMs + jittered(streamLifeMs, this.#given.clock);
      follower.onSuccession({ taken: this.#main.told !== undefined, full: this.#main.full });
    } else if (stream === this.#replacement) {
      this.#replacement = undefined;
      if (!this.#left && (!signal.aborted || stream.stop.signal.aborted))
        follower.askReopen(this.#replacementBackoff.next());
    }
  }

  /** When the stream that decides has been silent for too long. */
  #silentUntilMs(): number {
    return this.#main?.silent === true ? this.#main.openedMs + firstEventMs : Infinity;
  }

  /** Ends the stream that decides, which has brought nothing. */
  #giveUp(): void {
    const { address, log } = this.#given;
    this.reason = `Curator "${address}" brought no event within ${firstEventMs / 60_000} min`;
    this.error = undefined;
    log.info("A watch stream was given up", { curator: address, reason: this.reason });
    this.#main?.stop.abort();
    this.#main = undefined;
  }

  /** Opens a stream beside the one that decides whenever that is due, and ends one that stays silent. */
  async #renew(end: AbortSignal): Promise<void> {
    const { clock, follower } = this.#given;
    while (!end.aborted) {
      const nextMs = Math.min(
        follower.nextReopenMs(),
        this.#main?.renewAtMs ?? Infinity,
        this.#replacement?.renewAtMs ?? Infinity,
        this.#silentUntilMs(),
      );
      await follower.reopenBell.wait(Math.max(0, nextMs - clock.nowMs()), end, clock);
      if (end.aborted) return;
      const nowMs = clock.nowMs();
      if (this.#silentUntilMs() <= nowMs) {
        this.#giveUp();
        continue;
      }
      const main = this.#main;
      const due = follower.nextReopenMs() <= nowMs || (main !== undefined && main.renewAtMs <= nowMs);
      follower.takeReopens(nowMs);
      if (main !== undefined && main.renewAtMs <= nowMs) main.renewAtMs = nowMs + streamLifeMs;
      if (this.#replacement !== undefined && this.#replacement.renewAtMs <= nowMs) {
        this.#replacement.renewAtMs = Infinity;
        this.#replacement.stop.abort();
      } else if (due && main?.full === true && this.#replacement === undefined) {
        // A picture that is not full yet will say all that a new stream could; and a Curator that never sends
        // LAST_BACKLOGGED gives no picture to remove by, however often it is asked.
        this.#replacement = this.#newStream(replacementLimitMs);
        this.#start(this.#replacement, end);
      }
    }
  }
}

/** Up to a tenth less: a thousand agents that started together spread over two hours of a day. */
function jittered(ms: number, clock: Clock): number {
  return ms * (1 - clock.random() / 10);
}
