/**
 * Keeps a watch stream open whatever happens: finds the leading Curator, and tries again with backoff and jitter.
 *
 * Only the leader serves, and any Curator knows it: each is asked beside the watch, and the one that it names is
 * next. A round tries every address once: the last good one first (after those given by hand when it fell silent), then
 * those given by hand, then those that the cluster named; a wait comes after each round, one for all addresses (C4.10). What goes on between dialling an
 * address and losing it is a session's (session.ts). Events wait in the stream until the consumer takes them, so a
 * slow consumer costs no memory: gRPC's flow control holds the Curator.
 */
import { Backoff, Bell, type Clock, removedBackoff, streamBackoff, Value, type Watched } from "../async.ts";
import { isLoopbackCurator, type LeaderAnswer, leaderAddress, type NamedCurator } from "../core/curators.ts";
import { asNodeId, type NodeId } from "../core/node.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { CuratorError, describeInLine } from "../errors.ts";
import type { Logger } from "../log.ts";
import { type CuratorConnection, isRemoved, removedProblem } from "./connection.ts";
import { Handoff } from "./handoff.ts";
import { Session, type SessionOwner, type StreamEvent } from "./session.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";

export type { StreamEvent };

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
  /** Files that this node proves itself with; none without TLS. */
  readonly credentials?: CredentialFiles | undefined;
  /** Streams one after the other until `signal` aborts. Never throws. Stream numbers grow and are never used twice. */
  follow(signal: AbortSignal): AsyncIterable<StreamEvent>;
  /** Opens the stream anew beside the running one, after `delayMs` (a picture that is held asks for a second opinion). */
  reopen(delayMs: number): void;
  /** Gives up the connection, or the attempt to make one, since it is known to be in vain, and tries anew without a wait. */
  reconnect(reason: string): void;
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
  /** Files that `connect` proves this node with. */
  readonly credentials?: CredentialFiles;
}

export interface FollowerParts {
  readonly clock: Clock;
  readonly log: Logger;
}

/** A Curator that serves is not left again for a leader that could not be reached so lately. */
const lostLeaderMs = 60_000;
/** Of one round so many named leaders are followed: a cluster has one, and perhaps one that was. */
const maxLeadersOfRound = 4;

/** Follows the Curators of the settings. */
export function createFollower(settings: FollowerSettings, parts: FollowerParts): CuratorFollower {
  return new Follower(settings, parts);
}

class Follower implements CuratorFollower {
  readonly connection = new Value<CuratorConnection | undefined>(undefined);
  readonly state = new Value<CuratorState>({ state: "none", fullPicture: false });
  readonly problems = new Value<readonly Problem[]>([]);
  readonly credentials: CredentialFiles | undefined;
  readonly #settings: FollowerSettings;
  readonly #parts: FollowerParts;
  /** Times at which the stream is to be opened anew, in no order. */
  #reopenAtMs: number[] = [];
  readonly #reopenBell = new Bell();
  #lastGood: NamedCurator | undefined;
  /** The last good one went away as it should not: the others come first. */
  #isLastGoodSuspect = false;
  /** The leader for which a stream was left. */
  #leader: NamedCurator | undefined;
  #learned: readonly NamedCurator[] = [];
  #session: Session | undefined;
  /** Ends the wait between two rounds. */
  readonly #hurry = new Bell();
  /** Leaders that could not be reached, and when. */
  readonly #lostLeadersMs = new Map<string, number>();
  #lastNumber = 0;
  readonly #told: Told = { untrusted: new Map() };
  /** A stream was taken and ended without an event: until one comes, being taken means nothing. */
  #emptyPromise = false;

  constructor(settings: FollowerSettings, parts: FollowerParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.credentials = settings.credentials;
  }

  reopen(delayMs: number): void {
    this.#reopenAtMs.push(this.#parts.clock.nowMs() + delayMs);
    this.#reopenBell.poke();
  }

  reconnect(reason: string): void {
    // What is sent over it from here on would wait for its limit.
    if (this.connection.get() !== undefined) this.connection.set(undefined);
    this.#session?.abandon(reason);
    this.#hurry.poke();
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
              message: describeFailures(others),
            },
          }),
      });
      await this.#hurry.wait((removed ? rare : usual).next(), signal, clock);
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
      this.#session = session;
      this.#hurry.clear();
      await session.run(signal);
      this.#session = undefined;
      if (this.connection.get() !== undefined) this.connection.set(undefined);
      if (signal.aborted) break;
      this.#setState({ state: "connecting", address });
      const { leader } = session;
      if (session.tooLarge) this.#tell({ tooLarge: { kind: "event-too-large", message: session.reason } });
      if (session.broughtEvent) {
        if (leader === undefined) this.#lastGood = next;
        else this.#leader = leader;
        this.#isLastGoodSuspect = leader === undefined && session.isBadFirst;
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
    const leader = this.#leader;
    this.#leader = undefined;
    const nowMs = clock.nowMs();
    for (const [address, ms] of this.#lostLeadersMs) {
      if (nowMs - ms >= lostLeaderMs) this.#lostLeadersMs.delete(address);
    }
    const last = this.#lastGood;
    const at = Math.max(
      0,
      given.findIndex(({ address }) => address === last?.address),
    );
    const inTurn = [...given.slice(at), ...given.slice(0, at)];
    // One that fell silent would cost the limit of a connection attempt before any other has its turn.
    const byHand = this.#isLastGoodSuspect
      ? [...inTurn.filter(({ address }) => address !== last?.address), last]
      : [last, ...inTurn];
    const all = [leader, ...byHand, ...named.slice(from), ...named.slice(0, from)].filter(
      (each) => each !== undefined,
    );
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
        this.#told.untrusted.set(address, { kind: "curator-untrusted", message: describeInLine(error) });
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

/** All of them in one line, and each hint once, however many Curators it is for. */
function describeFailures(failures: readonly Failure[]): string {
  const hints = failures.flatMap(({ error }) =>
    error instanceof CuratorError && error.hint !== undefined ? [`hint: ${error.hint}`] : [],
  );
  return [...failures.map(({ reason }) => reason), ...new Set(hints)].join("; ");
}

function isUntrusted(error: unknown): boolean {
  return error instanceof CuratorError && error.untrusted;
}
