/**
 * Keeps a watch stream open whatever happens: finds the leading Curator, tries again with backoff and jitter, and
 * opens the stream anew when tombstones may have been lost (C2).
 *
 * Only the leader serves, and any Curator knows it: each is asked beside the watch, and the one that it names is
 * next. A round tries every address once, the last good one first, then those given by hand, then those that the
 * cluster named; a wait comes after each round, one for all addresses (C4.10). A stream that
 * is opened anew runs beside the old one, on the same connection, until its picture is full. Events wait in the
 * stream until the consumer takes them, so a slow consumer costs no memory: gRPC's flow control holds the Curator.
 */
import {
  Backoff,
  type BackoffSchedule,
  Bell,
  type Clock,
  removedBackoff,
  streamBackoff,
  Value,
  type Watched,
} from "../async.ts";
import { isLoopbackCurator, type LeaderAnswer, leaderAddress, type NamedCurator } from "../core/curators.ts";
import { asNodeId, type Node, type NodeId } from "../core/node.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { RepeatCounter, repeatedNodes } from "../core/repeats.ts";
import { CuratorError, messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import {
  type CuratorConnection,
  type DecodedEvent,
  isEventTooLarge,
  isRemoved,
  removedProblem,
} from "./connection.ts";

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
  /** Curators that the cluster named, instead of those learned before: tried when those given by hand do not serve. */
  learn(curators: readonly NamedCurator[]): void;
}

/** Makes a connection to HOST:PORT. With `expectedId` the Curator must prove to be that node's. */
export type Connect = (address: string, expected?: { readonly expectedId?: NodeId }) => CuratorConnection;

export interface FollowerSettings {
  /** Given by hand: always tried. */
  readonly addresses: readonly string[];
  readonly self: NodeId;
  readonly connect: Connect;
  /** A Curator that the cluster names inside one of these is never dialled. */
  readonly clusterNets?: readonly Prefix[];
  /** Of the Curators that the cluster names only those on this machine are dialled. */
  readonly loopbackOnly?: boolean;
  /** Only these nodes are followed when the cluster names them; any when left out. */
  readonly curatorIds?: readonly string[];
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
/** Between questions who leads, on one connection: the answer of the real one stands until the leader changes. */
const leaderBackoff: BackoffSchedule = { firstMs: 500, capMs: 60_000 };
/** A Curator that does not lead is given this long to say who does. */
const leaderAnswerMs = 5_000;
/** A Curator that serves is not left again for a leader that could not be reached so lately. */
const lostLeaderMs = 60_000;
/** A stream that lasted so long was no part of an endless exchange between two Curators that name each other. */
const steadyMs = 60_000;
/** Of one round so many named leaders are followed: a cluster has one, and perhaps one that was. */
const maxLeadersOfRound = 4;
/** gRPC status UNIMPLEMENTED: a Curator that does not lead, or one that cannot say who does. */
const unimplemented = 12;

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
  #lastGood: NamedCurator | undefined;
  /** The leader for which a stream was left. */
  #leader: NamedCurator | undefined;
  #learned: readonly NamedCurator[] = [];
  /** Leaders that could not be reached, and when. */
  readonly #lostLeadersMs = new Map<string, number>();
  #lastNumber = 0;
  readonly #told: Told = { untrusted: new Map() };
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

  learn(curators: readonly NamedCurator[]): void {
    this.#learned = curators;
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
    const usual = new Backoff(streamBackoff, clock);
    const rare = new Backoff(removedBackoff, clock);
    while (!signal.aborted) {
      const { served, failures } = await this.#round(out, signal);
      if (signal.aborted) return;
      const removed = failures.some((each) => isRemoved(each.error));
      if (served?.isSteady === true) usual.reset();
      if (served?.broughtEvent === true) rare.reset();
      const others = failures.filter(({ error }) => !isRemoved(error) && !isUntrusted(error));
      this.#tell({
        ...(removed && { removed: removedProblem(this.#settings.self), unreachable: undefined }),
        ...(others.length > 0 &&
          !removed && {
            unreachable: {
              kind: "curator-unreachable",
              message: others.map(({ reason }) => reason).join("; "),
            },
          }),
      });
      await clock.sleep((removed ? rare : usual).next(), signal);
    }
  }

  /** Tries every address once, until one has served. What it served ends with the round. */
  async #round(out: Handoff<StreamEvent>, signal: AbortSignal): Promise<Round> {
    const { clock, log } = this.#parts;
    const queue = [...this.#choose()];
    const tried = new Set<string>();
    const failures: Failure[] = [];
    let leaders = 0;
    for (let next; (next = queue.shift()) !== undefined;) {
      const { address, nodeId } = next;
      if (tried.has(address)) continue;
      tried.add(address);
      const session = new Session({
        address,
        connection: this.#settings.connect(address, nodeId === undefined ? {} : { expectedId: nodeId }),
        out,
        follower: this.#asOwner(next, signal),
        ...this.#parts,
      });
      this.#setState({ state: "connecting", address });
      await session.run(signal);
      if (this.connection.get() !== undefined) this.connection.set(undefined);
      if (signal.aborted) break;
      this.#setState({ state: "connecting", address });
      const { leader } = session;
      if (session.tooLarge) this.#tell({ tooLarge: { kind: "event-too-large", message: session.reason } });
      if (session.broughtEvent) {
        if (leader === undefined) this.#lastGood = next;
        else this.#leader = leader;
        const { reason, error } = session;
        return { served: session, failures: isRemoved(error) ? [{ reason, error }] : [] };
      }
      if (nodeId !== undefined) {
        this.#lostLeadersMs.set(address, clock.nowMs());
        if (this.#lastGood?.address === address) this.#lastGood = undefined;
        // Another node than the one that was named: if the address was given by hand as well, that may be meant.
        if (isUntrusted(session.error)) tried.delete(address);
      }
      if (leader !== undefined && !tried.has(leader.address) && leaders < maxLeadersOfRound) {
        leaders++;
        queue.unshift(leader);
        log.debug("A Curator names another one as leader", { curator: address, leader: leader.address });
        continue;
      }
      this.#tell({ untrusted: { address, error: session.error } });
      if (session.tooLarge) continue;
      if (session.taken) this.#emptyPromise = true;
      failures.push({ reason: session.reason + session.leaderReason, error: session.error });
    }
    return { failures };
  }

  /** The addresses of a round, in the order in which they are tried. */
  #choose(): readonly NamedCurator[] {
    const { clock } = this.#parts;
    const given = this.#settings.addresses.map((address): NamedCurator => ({ address }));
    const named = this.#learned.filter((each) => this.#mayDial(each));
    // Named ones from a place of this agent's own, so that not all agents ask one and the same.
    const from = Math.floor(clock.random() * named.length);
    const first = [this.#leader, this.#lastGood].filter((each) => each !== undefined);
    this.#leader = undefined;
    const nowMs = clock.nowMs();
    for (const [address, ms] of this.#lostLeadersMs) {
      if (nowMs - ms >= lostLeaderMs) this.#lostLeadersMs.delete(address);
    }
    const at = Math.max(
      0,
      given.findIndex(({ address }) => address === this.#lastGood?.address),
    );
    const all = [
      ...first,
      ...given.slice(at),
      ...given.slice(0, at),
      ...named.slice(from),
      ...named.slice(0, from),
    ];
    for (const address of this.#told.untrusted.keys()) {
      if (!all.some((each) => each.address === address)) this.#told.untrusted.delete(address);
    }
    return all;
  }

  /** Whether a Curator that was not given by hand may be dialled. */
  #mayDial({ address, nodeId }: NamedCurator): boolean {
    const { loopbackOnly, curatorIds } = this.#settings;
    if (loopbackOnly === true && !isLoopbackCurator(address)) return false;
    return curatorIds === undefined || nodeId === undefined || curatorIds.includes(nodeId);
  }

  /** The leader that a Curator named, if it can be followed; else why not. */
  #leaderOf(answer: LeaderAnswer): NamedCurator | string {
    const { clusterNets = [] } = this.#settings;
    const nodeId = asNodeId(answer.leaderNodeId);
    const address = leaderAddress(answer, clusterNets);
    const name = quote(answer.leaderNodeId);
    if (nodeId === undefined || address === undefined) {
      return `it names leader ${name} at ${quote(answer.leaderHost)}, which is no address to dial`;
    }
    const leader = { address, nodeId };
    return this.#mayDial(leader)
      ? leader
      : `it names leader ${name} at ${address}, which is not among those allowed`;
  }

  /** What a session tells and asks. */
  #asOwner({ address }: NamedCurator, signal: AbortSignal): SessionOwner {
    const { clock } = this.#parts;
    return {
      leaderOf: (answer) => this.#leaderOf(answer),
      isLost: (leader) => this.#lostLeadersMs.has(leader),
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
        this.#tell({ untrusted: { address }, ...(!this.#emptyPromise && { unreachable: undefined }) });
      },
      onEvent: (fullPicture) => {
        this.#emptyPromise = false;
        this.#tell({
          unreachable: undefined,
          removed: undefined,
          ...(fullPicture && { tooLarge: undefined }),
        });
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
  #tell(change: ToldChange): void {
    const { untrusted, ...lasting } = change;
    Object.assign(this.#told, lasting);
    if (untrusted !== undefined) {
      const { address, error } = untrusted;
      if (isUntrusted(error)) {
        this.#told.untrusted.set(address, { kind: "curator-untrusted", message: messageOf(error) });
      } else this.#told.untrusted.delete(address);
    }
    const { unreachable, removed, tooLarge } = this.#told;
    const next = [unreachable, removed, tooLarge, ...this.#told.untrusted.values()].filter(
      (problem) => problem !== undefined,
    );
    const before = this.problems.get();
    const same =
      next.length === before.length && next.every(({ message }, at) => message === before[at]?.message);
    if (!same) this.problems.set(next);
  }
}

/** The problems that last. */
interface Told {
  unreachable?: Problem | undefined;
  removed?: Problem | undefined;
  tooLarge?: Problem | undefined;
  /** By address. */
  readonly untrusted: Map<string, Problem>;
}

interface ToldChange extends Partial<Omit<Told, "untrusted">> {
  /** How the last try of an address ended. */
  readonly untrusted?: { readonly address: string; readonly error?: unknown };
}

interface Failure {
  readonly reason: string;
  readonly error: unknown;
}

interface Round {
  /** The session that brought events. */
  readonly served?: Session;
  /** Why each address did not serve; of one that served only that this node was removed meanwhile. */
  readonly failures: readonly Failure[];
}

function isUntrusted(error: unknown): boolean {
  return error instanceof CuratorError && error.untrusted;
}

/** The follower as its sessions see it. */
interface SessionOwner {
  readonly repeats: RepeatCounter;
  /** Rings when a reopening was asked for. */
  readonly reopenBell: Bell;
  nextNumber(): number;
  /** The leader that was named, if it can be followed; else why not. */
  leaderOf(answer: LeaderAnswer): NamedCurator | string;
  /** That leader could not be reached lately. */
  isLost(address: string): boolean;
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
  error: unknown;
  /** Another Curator that leads, by what this one says. */
  leader: NamedCurator | undefined;
  /** Why the leader that it names is not followed, to be set behind `reason`. */
  leaderReason = "";
  /** It was an event that is too large. */
  tooLarge = false;
  readonly #given: SessionParts;
  readonly #replacementBackoff: Backoff;
  readonly #pumps = new Set<Promise<void>>();
  readonly #openedMs: number;
  /** Resolved when it has been said who leads, or cannot be. */
  readonly #leaderSaid = Promise.withResolvers<void>();
  /** The stream was left for the leader. */
  #left = false;
  #main: Stream | undefined;
  #replacement: Stream | undefined;

  constructor(given: SessionParts) {
    this.#given = given;
    this.#replacementBackoff = new Backoff(replacementBackoff, given.clock);
    this.#openedMs = given.clock.nowMs();
  }

  /** It ended as streams of a healthy Curator do, so the next one may come soon. */
  get isSteady(): boolean {
    // What came before an event that is too large comes again each time: it must not make us quick. Nor must two
    // Curators that each name the other.
    if (this.tooLarge || !this.broughtEvent) return false;
    return !this.#left || this.#given.clock.nowMs() - this.#openedMs >= steadyMs;
  }

  async run(signal: AbortSignal): Promise<void> {
    const ended = new AbortController();
    const end = AbortSignal.any([signal, ended.signal]);
    this.#main = this.#newStream(streamLifeMs);
    this.#start(this.#main, end);
    const beside = [this.#renew(end), this.#askLeader(end)];
    // A stream beside the others joins while they run.
    while (this.#pumps.size > 0) await Promise.all(this.#pumps);
    if (!this.broughtEvent && codeOf(this.error) === unimplemented) await this.#hearLeader(end);
    ended.abort();
    await Promise.all(beside);
    this.#given.connection.close();
    // A Curator that has served and whose stream ended is tried again itself: who leads is asked anew.
    if (this.broughtEvent && !this.#left) this.leader = undefined;
  }

  /** Keeps asking who leads, as long as the connection is used; at each end of an answer it may be another one. */
  async #askLeader(end: AbortSignal): Promise<void> {
    const { address, clock, connection, log } = this.#given;
    const backoff = new Backoff(leaderBackoff, clock);
    while (!end.aborted) {
      const askedMs = clock.nowMs();
      try {
        for await (const answer of connection.watchLeader(end)) {
          this.#takeAnswer(answer);
          this.#leaderSaid.resolve();
        }
      } catch (error) {
        log.debug("A Curator does not say who leads", { curator: address, reason: messageOf(error) });
        if (codeOf(error) === unimplemented) break;
      }
      this.#leaderSaid.resolve();
      if (end.aborted) break;
      if (clock.nowMs() - askedMs >= leaderBackoff.capMs) backoff.reset();
      await clock.sleep(backoff.next(), end);
    }
    this.#leaderSaid.resolve();
  }

  #takeAnswer(answer: LeaderAnswer): void {
    const { address, follower, log } = this.#given;
    const named = follower.leaderOf(answer);
    const knowsItself = answer.thisNodeId !== "";
    this.leader = undefined;
    this.leaderReason = "";
    if (knowsItself && answer.thisNodeId === answer.leaderNodeId) return;
    if (typeof named === "string") {
      this.leaderReason = `; ${named}`;
      return;
    }
    if (named.address === address) return;
    this.leader = named;
    // One that does not say which node it is may be the leader itself, under another address: as long as it serves it
    // is not left. Nor is it left for a leader that cannot be reached.
    if (!knowsItself || follower.isLost(named.address) || this.#main === undefined) return;
    log.info("Leaving a Curator for the leader that it names", {
      curator: address,
      leader: named.address,
      node: named.nodeId,
    });
    this.#left = true;
    this.#replacement?.stop.abort();
    this.#main.stop.abort();
  }

  /** Waits a while for the word who leads. */
  async #hearLeader(end: AbortSignal): Promise<void> {
    const heard = new AbortController();
    void this.#leaderSaid.promise.then(() => heard.abort());
    await this.#given.clock.sleep(leaderAnswerMs, AbortSignal.any([end, heard.signal]));
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
    let failure: unknown;
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
      if (!this.#left && (!signal.aborted || stream.stop.signal.aborted))
        follower.askReopen(this.#replacementBackoff.next());
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

function codeOf(error: unknown): number | undefined {
  return error instanceof CuratorError ? error.code : undefined;
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
