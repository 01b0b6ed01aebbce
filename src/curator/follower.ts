/**
 * Keeps a watch stream open whatever happens: finds the leading Curator, and tries again with backoff and jitter.
 *
 * Only the leader serves, and any Curator knows it: each is asked beside the watch, and the one that it names is
 * next. A round tries every address once (addresses.ts); a wait comes after each round, one for all addresses (C4.10).
 * What goes on between dialling an address and losing it is a session's (session.ts). Events wait in the stream until the
 * consumer takes them, so a slow consumer costs no memory: gRPC's flow control holds the Curator.
 */
import { Backoff, Bell, type Clock, removedBackoff, streamBackoff, Value, type Watched } from "../async.ts";
import type { NamedCurator } from "../core/curators.ts";
import type { NodeId } from "../core/node.ts";
import type { Problem } from "../core/problem.ts";
import { CuratorError } from "../errors.ts";
import type { Logger } from "../log.ts";
import { type AddressSettings, CuratorAddresses } from "./addresses.ts";
import { type CuratorConnection, isRemoved, isUntrusted, removedProblem } from "./connection.ts";
import { CuratorProblems } from "./curator-problems.ts";
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

export interface FollowerSettings extends AddressSettings {
  readonly self: NodeId;
  readonly connect: Connect;
  /** Files that `connect` proves this node with. */
  readonly credentials?: CredentialFiles;
}

export interface FollowerParts {
  readonly clock: Clock;
  readonly log: Logger;
}

/** Of one round so many named leaders are followed: a cluster has one, and perhaps one that was. */
const maxLeadersOfRound = 4;

/** Follows the Curators of the settings. */
export function createFollower(settings: FollowerSettings, parts: FollowerParts): CuratorFollower {
  return new Follower(settings, parts);
}

class Follower implements CuratorFollower {
  readonly connection = new Value<CuratorConnection | undefined>(undefined);
  readonly state = new Value<CuratorState>({ state: "none", fullPicture: false });
  readonly problems: Watched<readonly Problem[]>;
  readonly credentials: CredentialFiles | undefined;
  readonly #settings: FollowerSettings;
  readonly #parts: FollowerParts;
  /** Times at which the stream is to be opened anew, in no order. */
  #reopenAtMs: number[] = [];
  readonly #reopenBell = new Bell();
  readonly #addresses: CuratorAddresses;
  readonly #told = new CuratorProblems();
  #session: Session | undefined;
  /** Ends the wait between two rounds. */
  readonly #hurry = new Bell();
  #lastNumber = 0;
  /** A stream was taken and ended without an event: until one comes, being taken means nothing. */
  #emptyPromise = false;

  constructor(settings: FollowerSettings, parts: FollowerParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.#addresses = new CuratorAddresses(settings, parts.clock);
    this.problems = this.#told.problems;
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
    this.#addresses.learn(curators);
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
      this.#told.tell({
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
    const { log } = this.#parts;
    const queue = [...this.#addresses.nextRound()];
    this.#told.keepOnly(queue.map(({ address }) => address));
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
      if (session.tooLarge)
        this.#told.tell({ tooLarge: { kind: "event-too-large", message: session.reason } });
      if (session.broughtEvent) {
        this.#addresses.noteServed(next, session);
        const { reason, error } = session;
        return { served: session, failures: isRemoved(error) ? [{ reason, error }] : [] };
      }
      if (nodeId !== undefined) {
        this.#addresses.noteLost(address);
        // Another node than the one that was named: if the address was given by hand as well, that may be meant.
        if (isUntrusted(session.error)) tried.delete(address);
      }
      if (leader !== undefined && !tried.has(leader.address) && leaders < maxLeadersOfRound) {
        leaders++;
        queue.unshift(leader);
        log.debug("A Curator names another one as leader", { curator: address, leader: leader.address });
        continue;
      }
      this.#told.tell({ untrusted: { address, error: session.error } });
      if (session.tooLarge) continue;
      if (session.taken) this.#emptyPromise = true;
      failures.push({ reason: session.reason + session.leaderReason, error: session.error });
    }
    return { failures };
  }

  /** What a session tells and asks. */
  #asOwner({ address }: NamedCurator, signal: AbortSignal): SessionOwner {
    const { clock } = this.#parts;
    return {
      leaderOf: (answer) => this.#addresses.leaderOf(answer),
      isLost: (leader) => this.#addresses.isLost(leader),
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
        this.#told.tell({ untrusted: { address }, ...(!this.#emptyPromise && { unreachable: undefined }) });
      },
      onEvent: (fullPicture) => {
        this.#emptyPromise = false;
        this.#told.tell({
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
