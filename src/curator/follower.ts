/**
 * Keeps a watch stream open whatever happens: chooses the Curator, tries again with backoff and jitter, and opens
 * the stream anew when tombstones may have been lost (C2).
 *
 * A round tries every address once, the last good one first; a wait comes after each round (C4.10). A stream that
 * is opened anew runs beside the old one, on the same connection, until its picture is full. Events wait in the
 * stream until the consumer takes them, so a slow consumer costs no memory: gRPC's flow control holds the Curator.
 */
import {
  Backoff,
  type BackoffSchedule,
  Bell,
  type Clock,
  streamBackoff,
  Value,
  type Watched,
} from "../async.ts";
import type { Node, NodeId } from "../core/node.ts";
import type { Problem } from "../core/problem.ts";
import { RepeatCounter, repeatedNodes } from "../core/repeats.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import { type CuratorConnection, type DecodedEvent, isEventTooLarge } from "./connection.ts";

export type StreamEvent =
  /** A stream was opened. `replaces`: another one goes on until this one's picture is full. */
  | { readonly kind: "opened"; readonly stream: number; readonly address: string; readonly replaces?: number }
  | { readonly kind: "event"; readonly stream: number; readonly event: DecodedEvent }
  /** No more events of this stream. */
  | { readonly kind: "closed"; readonly stream: number };

/** What the status shows of the Curator. */
export interface CuratorState {
  readonly state: "connected" | "connecting" | "none";
  readonly address?: string;
  readonly since?: Date;
  /** The current stream has brought its full picture. */
  readonly fullPicture: boolean;
  readonly lastEventAt?: Date;
}

export interface CuratorFollower {
  /** The connection whose stream is alive: announcements go there. Undefined while there is none. */
  readonly connection: Watched<CuratorConnection | undefined>;
  readonly state: Watched<CuratorState>;
  /** `curator-unreachable`, `event-too-large`, … while they last. */
  readonly problems: Watched<readonly Problem[]>;
  /** Streams one after the other until `signal` aborts. Never throws. Stream numbers grow and are never used twice. */
  follow(signal: AbortSignal): AsyncIterable<StreamEvent>;
  /** Opens the stream anew beside the running one, after `delayMs` (a picture that is held asks for a second opinion). */
  reopen(delayMs: number): void;
}

export type Connect = (address: string) => CuratorConnection;

export interface FollowerSettings {
  readonly addresses: readonly string[];
  readonly self: NodeId;
  readonly connect: Connect;
}

export interface FollowerParts {
  readonly clock: Clock;
  readonly log: Logger;
}

/** Tombstones may have been lost without any sign, so every stream is replaced after this time at the latest (C2). */
const streamLifeMs = 24 * 60 * 60_000;
/** After signs of lost tombstones the stream is opened anew within this time, so that not all agents do it at once (C2). */
const suspicionMs = 60_000;
/** A stream beside the running one that has no full picture by then is given up; the slowest one measured took 85 s. */
const replacementLimitMs = 10 * 60_000;
/** Between attempts to open a stream beside a running one: nothing is lost meanwhile, and a backlog costs the Curator. */
const replacementBackoff: BackoffSchedule = { firstMs: 5_000, capMs: 60_000 };

/** Follows the Curators of the settings. */
export function createFollower(settings: FollowerSettings, parts: FollowerParts): CuratorFollower {
  return new Follower(settings, parts);
}

class Follower implements CuratorFollower {
  readonly connection = new Value<CuratorConnection | undefined>(undefined);
  readonly state = new Value<CuratorState>({ state: "none", fullPicture: false });
  readonly problems = new Value<readonly Problem[]>([]);
  readonly #settings: FollowerSettings;
  readonly #parts: FollowerParts;
  readonly #repeats = new RepeatCounter();
  /** Times at which the stream is to be opened anew, in no order. */
  #reopenAtMs: number[] = [];
  readonly #reopenBell = new Bell();
  #lastGood: string | undefined;
  #lastNumber = 0;
  #unreachable: Problem | undefined;
  #tooLarge: Problem | undefined;
  /** A stream was taken and ended without an event: until one comes, being taken means nothing. */
  #emptyPromise = false;

  constructor(settings: FollowerSettings, parts: FollowerParts) {
    this.#settings = settings;
    this.#parts = parts;
  }

  reopen(delayMs: number): void {
    this.#reopenAtMs.push(this.#parts.clock.nowMs() + delayMs);
    this.#reopenBell.poke();
  }

  async *follow(signal: AbortSignal): AsyncIterable<StreamEvent> {
    const stop = new AbortController();
    const end = AbortSignal.any([signal, stop.signal]);
    const out = new Handoff<StreamEvent>();
    end.addEventListener("abort", () => out.close(), { once: true });
    // It ends before `end` aborts only by a bug: then that is thrown below instead of waiting for ever.
    const work = this.#run(out, end).finally(() => out.close());
    try {
      yield* out.items();
    } finally {
      stop.abort();
      await work;
      this.state.set({ state: "none", fullPicture: false });
    }
  }

  async #run(out: Handoff<StreamEvent>, signal: AbortSignal): Promise<void> {
    const { clock } = this.#parts;
    const backoff = new Backoff(streamBackoff, clock);
    while (!signal.aborted) {
      const failures: string[] = [];
      for (const address of this.#choose()) {
        const session = new Session({
          address,
          connection: this.#settings.connect(address),
          out,
          follower: this.#asOwner(address, signal),
          ...this.#parts,
        });
        this.#setState({ state: "connecting", address });
        await session.run(signal);
        if (this.connection.get() !== undefined) this.connection.set(undefined);
        if (signal.aborted) return;
        this.#setState({ state: "connecting", address });
        if (session.tooLarge) this.#tell({ tooLarge: { kind: "event-too-large", message: session.reason } });
        if (session.broughtEvent) {
          this.#lastGood = address;
          // What came before an event that is too large comes again each time: it must not make us quick.
          if (!session.tooLarge) backoff.reset();
          failures.length = 0;
          break;
        }
        if (session.tooLarge) continue;
        if (session.taken) this.#emptyPromise = true;
        failures.push(session.reason);
      }
      if (failures.length > 0) {
        this.#tell({ unreachable: { kind: "curator-unreachable", message: failures.join("; ") } });
      }
      await clock.sleep(backoff.next(), signal);
    }
  }

  /** The addresses of a round, in the order in which they are tried. */
  #choose(): readonly string[] {
    const { addresses } = this.#settings;
    const first = Math.max(0, addresses.indexOf(this.#lastGood ?? ""));
    return [...addresses.slice(first), ...addresses.slice(0, first)];
  }

  /** What a session tells and asks. */
  #asOwner(address: string, signal: AbortSignal): SessionOwner {
    const { clock } = this.#parts;
    return {
      repeats: this.#repeats,
      reopenBell: this.#reopenBell,
      nextNumber: () => ++this.#lastNumber,
      askReopen: (delayMs) => this.reopen(delayMs),
      nextReopenMs: () => Math.min(Infinity, ...this.#reopenAtMs),
      takeReopens: (nowMs) => {
        this.#reopenAtMs = this.#reopenAtMs.filter((atMs) => atMs > nowMs);
      },
      onTaken: (connection) => {
        if (signal.aborted) return;
        this.connection.set(connection);
        this.#setState({ state: "connected", address });
        if (!this.#emptyPromise) this.#tell({ unreachable: undefined });
      },
      onEvent: (fullPicture) => {
        this.#emptyPromise = false;
        this.#tell({ unreachable: undefined, ...(fullPicture && { tooLarge: undefined }) });
        this.state.set({ ...this.state.get(), fullPicture, lastEventAt: clock.wallTime() });
      },
      onSuccession: ({ taken, full }) => {
        if (!taken) this.connection.set(undefined);
        this.#setState({ state: taken ? "connected" : "connecting", address }, full);
      },
    };
  }

  #setState(
    next: { readonly state: "connected" | "connecting"; readonly address: string },
    fullPicture = false,
  ): void {
    const { state, since, lastEventAt } = this.state.get();
    this.state.set({
      ...next,
      since: state === next.state && since !== undefined ? since : this.#parts.clock.wallTime(),
      fullPicture,
      ...(lastEventAt !== undefined && { lastEventAt }),
    });
  }

  /** Takes in what changed of the problems; nobody is woken when nothing did. */
  #tell(change: { unreachable?: Problem | undefined; tooLarge?: Problem | undefined }): void {
    if ("unreachable" in change) this.#unreachable = change.unreachable;
    if ("tooLarge" in change) this.#tooLarge = change.tooLarge;
    const next = [this.#unreachable, this.#tooLarge].filter((problem) => problem !== undefined);
    const before = this.problems.get();
    const same =
      next.length === before.length && next.every(({ message }, at) => message === before[at]?.message);
    if (!same) this.problems.set(next);
  }
}

/** The follower as its sessions see it. */
interface SessionOwner {
  readonly repeats: RepeatCounter;
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

interface SessionParts extends FollowerParts {
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
  full: boolean;
  readonly nodes: Map<NodeId, Node>;
  /** Settled when the consumer has been told of it. */
  told?: Promise<void>;
}

/**
 * One connection with the stream that decides (`main`) and perhaps one beside it that is to take its place
 * (`replacement`). Ends when neither is left.
 */
class Session {
  /** The Curator has answered. */
  taken = false;
  broughtEvent = false;
  /** Why the stream that ended last did so. */
  reason = "";
  /** It was an event that is too large. */
  tooLarge = false;
  readonly #given: SessionParts;
  readonly #replacementBackoff: Backoff;
  readonly #pumps = new Set<Promise<void>>();
  #main: Stream | undefined;
  #replacement: Stream | undefined;

  constructor(given: SessionParts) {
    this.#given = given;
    this.#replacementBackoff = new Backoff(replacementBackoff, given.clock);
  }

  async run(signal: AbortSignal): Promise<void> {
    const ended = new AbortController();
    const end = AbortSignal.any([signal, ended.signal]);
    this.#main = this.#newStream(streamLifeMs);
    this.#start(this.#main, end);
    const renewing = this.#renew(end);
    // A stream beside the others joins while they run.
    while (this.#pumps.size > 0) await Promise.all(this.#pumps);
    ended.abort();
    await renewing;
    this.#given.connection.close();
  }

  #newStream(lifeMs: number): Stream {
    const { clock, follower } = this.#given;
    const nowMs = clock.nowMs();
    return {
      number: follower.nextNumber(),
      stop: new AbortController(),
      openedMs: nowMs,
      renewAtMs: nowMs + jittered(lifeMs, clock),
      full: false,
      nodes: new Map(),
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
    let tooLarge = false;
    try {
      for await (const event of connection.watchNodes(signal, () => this.#onTaken(stream))) {
        this.#onTaken(stream);
        await stream.told;
        const full = event.lastBacklogged && !stream.full;
        stream.full ||= event.lastBacklogged;
        this.broughtEvent = true;
        if (stream === this.#main) this.#look(stream, event);
        else remember(stream, event);
        await out.put({ kind: "event", stream: stream.number, event });
        if (full && stream === this.#replacement) this.#takeOver(stream);
      }
    } catch (error) {
      reason = messageOf(error);
      tooLarge = isEventTooLarge(error);
    }
    if (!signal.aborted) {
      this.reason = reason;
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

  /** Takes in an event of the stream that decides, and looks for signs of lost tombstones. */
  #look(stream: Stream, event: DecodedEvent): void {
    const { clock, follower, log } = this.#given;
    const repeated = remember(stream, event);
    follower.onEvent(stream.full);
    for (const nodeId of repeated) {
      const suspicious = follower.repeats.isSuspicious({
        nodeId,
        known: stream.nodes.size,
        nowMs: clock.nowMs(),
        streamOpenedMs: stream.openedMs,
      });
      if (!suspicious) continue;
      log.info(
        "The Curator sends its nodes again: deletions may have been lost, so the stream is opened anew",
        {
          curator: this.#given.address,
        },
      );
      follower.askReopen(clock.random() * suspicionMs);
    }
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
      if (!signal.aborted || stream.stop.signal.aborted) follower.askReopen(this.#replacementBackoff.next());
    }
  }

  /** Opens a stream beside the one that decides whenever that is due. */
  async #renew(end: AbortSignal): Promise<void> {
    const { clock, follower } = this.#given;
    while (!end.aborted) {
      const nextMs = Math.min(
        follower.nextReopenMs(),
        this.#main?.renewAtMs ?? Infinity,
        this.#replacement?.renewAtMs ?? Infinity,
      );
      await follower.reopenBell.wait(Math.max(0, nextMs - clock.nowMs()), end, clock);
      if (end.aborted) return;
      const nowMs = clock.nowMs();
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

/** Takes in an event; returns the nodes that the stream had named before, exactly so. */
function remember(stream: Stream, event: DecodedEvent): readonly NodeId[] {
  const repeated = repeatedNodes({ current: stream.nodes }, event);
  for (const node of event.nodes) stream.nodes.set(node.id, node);
  for (const nodeId of event.tombstones) stream.nodes.delete(nodeId);
  return repeated;
}

/** Hands things from several producers to one consumer, one at a time. */
class Handoff<T> {
  readonly #offered: { readonly item: T; readonly taken: () => void }[] = [];
  #closed = false;
  #wake: () => void = () => {};

  /** Resolves when the consumer has taken it, or nothing is taken any more. */
  put(item: T): Promise<void> {
    if (this.#closed) return Promise.resolve();
    return new Promise((taken) => {
      this.#offered.push({ item, taken });
      this.#wake();
    });
  }

  /** Nothing is taken from here on. */
  close(): void {
    this.#closed = true;
    for (const { taken } of this.#offered.splice(0)) taken();
    this.#wake();
  }

  /** Ends when it is closed. */
  async *items(): AsyncGenerator<T, void> {
    for (;;) {
      const next = this.#offered.shift();
      if (next !== undefined) {
        next.taken();
        yield next.item;
      } else if (this.#closed) {
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }
}
