/**
 * Which Curators are tried, and in which order: those given by hand in every round, those that the cluster names besides.
 *
 * The last good one comes first, after those given by hand when it went away as it should not: one that fell silent would
 * cost the limit of a connection attempt before any other has its turn.
 */
import type { Clock } from "../async.ts";
import { isLoopbackCurator, type LeaderAnswer, leaderAddress, type NamedCurator } from "../core/curators.ts";
import { asNodeId } from "../core/node.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import type { Session } from "./session.ts";

export interface AddressSettings {
  /** Given by hand: always tried. */
  readonly addresses: readonly string[];
  /** A Curator that the cluster names inside one of these is never dialled. */
  readonly clusterNets?: readonly Prefix[];
  /** Of the Curators that the cluster names only those on this machine are dialled. */
  readonly loopbackOnly?: boolean;
  /** Only these nodes are followed when the cluster names them; any when left out. */
  readonly curatorIds?: readonly string[];
}

/** A Curator that serves is not left again for a leader that could not be reached so lately. */
const lostLeaderMs = 60_000;

export class CuratorAddresses {
  readonly #settings: AddressSettings;
  readonly #clock: Clock;
  #learned: readonly NamedCurator[] = [];
  #lastGood: NamedCurator | undefined;
  /** The last good one went away as it should not: the others come first. */
  #isLastGoodSuspect = false;
  /** The leader for which a stream was left. */
  #leader: NamedCurator | undefined;
  /** Leaders that could not be reached, and when. */
  readonly #lostLeadersMs = new Map<string, number>();

  constructor(settings: AddressSettings, clock: Clock) {
    this.#settings = settings;
    this.#clock = clock;
  }

  /** Curators that the cluster named, instead of those learned before. */
  learn(curators: readonly NamedCurator[]): void {
    this.#learned = curators;
  }

  /** The addresses of a round, in the order in which they are tried. */
  nextRound(): readonly NamedCurator[] {
    const given = this.#settings.addresses.map((address): NamedCurator => ({ address }));
    const named = this.#learned.filter((each) => this.#mayDial(each));
    // Named ones from a place of this agent's own, so that not all agents ask one and the same.
    const from = Math.floor(this.#clock.random() * named.length);
    const leader = this.#leader;
    this.#leader = undefined;
    const nowMs = this.#clock.nowMs();
    for (const [address, ms] of this.#lostLeadersMs) {
      if (nowMs - ms >= lostLeaderMs) this.#lostLeadersMs.delete(address);
    }
    const last = this.#lastGood;
    const at = Math.max(
      0,
      given.findIndex(({ address }) => address === last?.address),
    );
    const inTurn = [...given.slice(at), ...given.slice(0, at)];
    const byHand = this.#isLastGoodSuspect
      ? [...inTurn.filter(({ address }) => address !== last?.address), last]
      : [last, ...inTurn];
    return [leader, ...byHand, ...named.slice(from), ...named.slice(0, from)].filter(
      (each) => each !== undefined,
    );
  }

  /** A Curator has served, perhaps until it was left for the leader that it named. */
  noteServed(curator: NamedCurator, { leader, isBadFirst }: Pick<Session, "leader" | "isBadFirst">): void {
    if (leader === undefined) this.#lastGood = curator;
    else this.#leader = leader;
    this.#isLastGoodSuspect = leader === undefined && isBadFirst;
  }

  /** A Curator that is followed because it was named has not served. */
  noteLost(address: string): void {
    this.#lostLeadersMs.set(address, this.#clock.nowMs());
    if (this.#lastGood?.address === address) this.#lastGood = undefined;
  }

  /** That leader could not be reached lately. */
  isLost(address: string): boolean {
    return this.#lostLeadersMs.has(address);
  }

  /** The leader that a Curator named, if it can be followed; else why not. */
  leaderOf(answer: LeaderAnswer): NamedCurator | string {
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

  /** Whether a Curator that was not given by hand may be dialled. */
  #mayDial({ address, nodeId }: NamedCurator): boolean {
    const { loopbackOnly, curatorIds } = this.#settings;
    if (loopbackOnly === true && !isLoopbackCurator(address)) return false;
    return curatorIds === undefined || nodeId === undefined || curatorIds.includes(nodeId);
  }
}
