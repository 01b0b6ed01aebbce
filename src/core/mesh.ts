/**
 * The mesh: which node is a peer with which prefixes, when all claims are seen together (C4.5, C4.6).
 *
 * Deterministic: the same claims, own prefixes and incumbents give the same mesh in whatever order they come.
 * No address has two owners. Who held a key or prefix before keeps it; among the others the node goes first whose
 * claims meet those of the fewest other nodes, so one node cannot take the prefixes of many by having a small ID.
 */
import { type Claim, maxProblemsOfNode } from "./claim.ts";
import type { PublicKey } from "./key.ts";
import type { NodeId } from "./node.ts";
import { findOverlaps, NodeBits, type Overlaps, own, type Place } from "./overlap.ts";
import type { Address, Prefix } from "./prefix.ts";
import { type Problem, quote } from "./problem.ts";

export interface Peer {
  readonly nodeId: NodeId;
  readonly publicKey: PublicKey;
  /** Announced address; the port is the same for the whole mesh. */
  readonly address?: Address;
  /** Sorted. No two peers' prefixes overlap, nor any with this node's own. */
  readonly prefixes: readonly Prefix[];
}

export interface Mesh {
  /** Sorted by node ID, as code units. */
  readonly peers: readonly Peer[];
}

/** Who held what before: these keep it while they go on claiming (C4.5). Made by `incumbentsOf`. */
export interface Incumbents {
  /** Prefix text to its owner. */
  readonly prefixes: ReadonlyMap<string, NodeId>;
  readonly keys: ReadonlyMap<PublicKey, NodeId>;
}

export const noIncumbents: Incumbents = { prefixes: new Map(), keys: new Map() };

export interface MeshInput {
  /** Of every node but this one, each once. */
  readonly claims: readonly Claim[];
  /** What this node announces: nobody else gets any of it. */
  readonly ownPrefixes: readonly Prefix[];
  readonly incumbents: Incumbents;
  /** How many other nodes a claim meets, of those that meet others than the claims given here. */
  readonly met?: ReadonlyMap<NodeId, number>;
}

export interface BuiltMesh {
  readonly mesh: Mesh;
  /**
   * Every problem of every node, those of its claim included, by node ID. At most 16 of one node; the last one then
   * says how many more there are.
   */
  readonly problems: readonly Problem[];
}

export function buildMesh({ claims, ownPrefixes, incumbents, met }: MeshInput): BuiltMesh {
  const overlaps = findOverlaps(
    claims.map(({ prefixes }) => prefixes),
    ownPrefixes,
  );
  const keyClaimants = groupByKey(claims);
  const counted = countOthers(claims, overlaps, keyClaimants);
  const others = claims.map(({ nodeId }, index) => met?.get(nodeId) ?? counted[index] ?? 0);
  const ranked = rankClaims(claims, others);
  const disputes = new Disputes(claims);
  const isPeer = settleKeys({ claims, ranked, keyClaimants, incumbents, disputes });
  settlePrefixes({ claims, ranked, places: overlaps.places, isPeer, incumbents, disputes });

  const peers: Peer[] = [];
  const problems: Problem[] = [];
  for (const index of sortedById(claims)) {
    const claim = claims[index];
    if (claim === undefined) continue;
    problems.push(...disputes.problemsOf(index));
    const peer = isPeer(index) ? peerOf(claim, disputes.keptBy(index)) : undefined;
    if (peer !== undefined) peers.push(peer);
  }
  return { mesh: { peers }, problems };
}

/** What becomes of a claim that got these prefixes; undefined for one without a usable key. */
export function peerOf({ nodeId, publicKey, address }: Claim, prefixes: readonly Prefix[]): Peer | undefined {
  if (publicKey === undefined) return undefined;
  // Of nearly every node, without the copy that leaves out what it has not.
  if (address !== undefined) return { nodeId, publicKey, address, prefixes };
  return { nodeId, publicKey, prefixes };
}

/** True when the two are the same in the file and on the interface. */
export function samePeer(a: Peer, b: Peer): boolean {
  return (
    a === b ||
    (a.nodeId === b.nodeId &&
      a.publicKey === b.publicKey &&
      a.address?.text === b.address?.text &&
      a.prefixes.length === b.prefixes.length &&
      a.prefixes.every((prefix, index) => prefix.text === b.prefixes[index]?.text))
  );
}

/** What lies between what two lists of peers have in common at their beginning and at their end. */
export interface DifferingRange {
  readonly from: number;
  readonly beforeTo: number;
  readonly afterTo: number;
}

/** Compares objects alone, which takes a hundredth of a millisecond for 10,000. */
export function differingRange(before: readonly Peer[], after: readonly Peer[]): DifferingRange {
  const shorter = Math.min(before.length, after.length);
  let from = 0;
  while (from < shorter && before[from] === after[from]) from++;
  let beforeTo = before.length;
  let afterTo = after.length;
  while (beforeTo > from && afterTo > from && before[beforeTo - 1] === after[afterTo - 1]) {
    beforeTo--;
    afterTo--;
  }
  return { from, beforeTo, afterTo };
}

/** Where in the mesh, from index `from` on, the peer of this node is or would be. */
export function placeOfPeer({ peers }: Mesh, nodeId: NodeId, from = 0): number {
  let [low, high] = [from, peers.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((peers[middle]?.nodeId ?? nodeId) < nodeId) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The peer of this node, if it is one. */
export function findPeer(mesh: Mesh, nodeId: NodeId): Peer | undefined {
  const peer = mesh.peers[placeOfPeer(mesh, nodeId)];
  return peer?.nodeId === nodeId ? peer : undefined;
}

export function incumbentsOf(mesh: Mesh): Incumbents {
  const prefixes = new Map<string, NodeId>();
  const keys = new Map<PublicKey, NodeId>();
  for (const peer of mesh.peers) {
    keys.set(peer.publicKey, peer.nodeId);
    for (const { text } of peer.prefixes) prefixes.set(text, peer.nodeId);
  }
  return { prefixes, keys };
}

/** Indexes of the claims that have a key, by key. */
function groupByKey(claims: readonly Claim[]): ReadonlyMap<PublicKey, readonly number[]> {
  const groups = new Map<PublicKey, number[]>();
  for (const [index, { publicKey }] of claims.entries()) {
    if (publicKey === undefined) continue;
    const group = groups.get(publicKey);
    if (group === undefined) groups.set(publicKey, [index]);
    else group.push(index);
  }
  return groups;
}

/**
 * How many other nodes each claim meets: by overlapping prefixes or by the same key.
 *
 * Claims of nodes that are no peers count like any other. Were they left out, a node could change who wins a
 * prefix that it cannot have itself, by breaking and mending its own key.
 */
function countOthers(
  claims: readonly Claim[],
  overlaps: Overlaps,
  keyClaimants: ReadonlyMap<PublicKey, readonly number[]>,
): readonly number[] {
  const met = new Map(overlaps.met);
  for (const group of keyClaimants.values()) {
    if (group.length < 2) continue;
    const sharers = new NodeBits(claims.length);
    for (const index of group) sharers.add(index);
    for (const index of group) {
      const all = new NodeBits(claims.length);
      all.reset(met.get(index));
      all.addAll(sharers);
      met.set(index, all);
    }
  }
  return claims.map((_, index) => {
    const bits = met.get(index);
    if (bits === undefined) return 0;
    // The set holds the node itself too.
    return bits.count() - 1;
  });
}

/** Indexes of the claims, the one that goes first first. */
function rankClaims(claims: readonly Claim[], others: readonly number[]): readonly number[] {
  // Sorting keeps the order of equals: by number of others, then by node ID.
  return sortedById(claims).toSorted((a, b) => (others[a] ?? 0) - (others[b] ?? 0));
}

/** By code units, so that every node of the mesh has the same order whatever its locale. */
function sortedById(claims: readonly Claim[]): number[] {
  const idOf = (index: number): string => claims[index]?.nodeId ?? "";
  return claims
    .map((_, index) => index)
    .toSorted((a, b) => (idOf(a) < idOf(b) ? -1 : idOf(a) > idOf(b) ? 1 : 0));
}

/** Why a prefix is not given: who has which one. Without an owner it is this node, whose operator can mend it. */
function describeTaken(prefix: Prefix, taken: Prefix, owner: NodeId | undefined): string {
  const isSame = prefix.text === taken.text;
  if (owner === undefined) {
    const found = isSame ? "it is a prefix of this node too" : `it overlaps ${taken.text} of this node`;
    return `${found}, and this node's own come first; give one of the two another prefix`;
  }
  const name = `node ${quote(owner)}`;
  return isSame
    ? `${name} announces it too, and keeps it`
    : `${name} announces ${taken.text}, which overlaps it, and keeps that`;
}

/** What came of the disputes: what each claim lost, and what there is to say about it. */
class Disputes {
  readonly #claims: readonly Claim[];
  readonly #lost = new Map<number, Set<string>>();
  /** As many as are shown, and how many there are: a message for each of 640,000 lost prefixes would take a second. */
  readonly #problems = new Map<number, { readonly kept: Problem[]; count: number }>();

  constructor(claims: readonly Claim[]) {
    this.#claims = claims;
  }

  /** Shows of whom a claimant is spoken, also when it is this node. */
  nameOf(index: number): string {
    const claim = this.#claims[index];
    return claim === undefined ? "this node" : `node ${quote(claim.nodeId)}`;
  }

  loseKey(index: number, winner: number, key: PublicKey): void {
    this.#report(index, () => ({
      kind: "key-taken",
      message: `Cannot make ${this.nameOf(index)} a peer: its public key ${key} belongs to ${this.nameOf(winner)}`,
    }));
  }

  losePrefix(
    index: number,
    prefix: Prefix,
    taken: { readonly prefix: Prefix; readonly owner: number },
  ): void {
    const lost = this.#lost.get(index);
    if (lost === undefined) this.#lost.set(index, new Set([prefix.text]));
    else lost.add(prefix.text);
    this.#report(index, () => {
      const owner = this.#claims[taken.owner]?.nodeId;
      const found = describeTaken(prefix, taken.prefix, owner);
      return {
        kind: "prefix-taken",
        message: `Cannot give prefix ${prefix.text} to ${this.nameOf(index)}: ${found}`,
      };
    });
  }

  keptBy(index: number): readonly Prefix[] {
    const prefixes = this.#claims[index]?.prefixes ?? [];
    const lost = this.#lost.get(index);
    return lost === undefined ? prefixes : prefixes.filter(({ text }) => !lost.has(text));
  }

  problemsOf(index: number): readonly Problem[] {
    const claim = this.#claims[index];
    if (claim === undefined) return [];
    const disputes = this.#problems.get(index);
    if (disputes === undefined && claim.problemCount <= maxProblemsOfNode) return claim.problems;
    const kept = [...claim.problems, ...(disputes?.kept ?? [])].slice(0, maxProblemsOfNode);
    const count = claim.problemCount + (disputes?.count ?? 0);
    if (count <= maxProblemsOfNode) return kept;
    return kept.map((problem, at) =>
      at === maxProblemsOfNode - 1
        ? {
            ...problem,
            message: `${problem.message} (and ${count - maxProblemsOfNode} more problems of this node)`,
          }
        : problem,
    );
  }

  #report(index: number, describe: () => Pick<Problem, "kind" | "message">): void {
    const nodeId = this.#claims[index]?.nodeId;
    const problems = this.#problems.get(index) ?? { kept: [], count: 0 };
    this.#problems.set(index, problems);
    problems.count++;
    if (problems.kept.length < maxProblemsOfNode) {
      problems.kept.push({ ...describe(), ...(nodeId !== undefined && { nodeId }) });
    }
  }
}

interface KeyDispute {
  readonly claims: readonly Claim[];
  readonly ranked: readonly number[];
  readonly keyClaimants: ReadonlyMap<PublicKey, readonly number[]>;
  readonly incumbents: Incumbents;
  readonly disputes: Disputes;
}

/** Gives each key to one node. Returns who is a peer: the losers and the nodes without a usable key are none. */
function settleKeys({
  claims,
  ranked,
  keyClaimants,
  incumbents,
  disputes,
}: KeyDispute): (index: number) => boolean {
  const owners = new Map<PublicKey, number>();
  for (const [key, group] of keyClaimants) {
    const incumbent = group.find((index) => claims[index]?.nodeId === incumbents.keys.get(key));
    if (incumbent !== undefined) owners.set(key, incumbent);
  }
  for (const index of ranked) {
    const key = claims[index]?.publicKey;
    if (key === undefined) continue;
    const owner = owners.get(key);
    if (owner === undefined) owners.set(key, index);
    else if (owner !== index) disputes.loseKey(index, owner, key);
  }
  return (index) => {
    const key = claims[index]?.publicKey;
    return key !== undefined && owners.get(key) === index;
  };
}

interface PrefixDispute {
  readonly claims: readonly Claim[];
  readonly ranked: readonly number[];
  readonly places: readonly Place[];
  readonly isPeer: (index: number) => boolean;
  readonly incumbents: Incumbents;
  readonly disputes: Disputes;
}

/** Gives disputed prefixes away one by one, in the order of C4.5; what overlaps one that is given already is lost. */
function settlePrefixes({ claims, ranked, places, isPeer, incumbents, disputes }: PrefixDispute): void {
  const grants = new Grants();
  const wanted = new Map<number, Place[]>();
  for (const place of places) {
    for (const claimant of place.claimants) {
      if (claimant === own) grants.give(place, own);
      const list = wanted.get(claimant);
      if (list === undefined) wanted.set(claimant, [place]);
      else list.push(place);
    }
  }
  const held = (index: number, place: Place): boolean =>
    incumbents.prefixes.get(place.prefix.text) === claims[index]?.nodeId;

  const disputants = ranked.filter((index) => wanted.has(index) && isPeer(index));
  for (const turn of [true, false]) {
    for (const index of disputants) {
      for (const place of wanted.get(index) ?? []) {
        if (held(index, place) !== turn) continue;
        if (grants.inTheWayOf(place, index) === undefined) grants.give(place, index);
      }
    }
  }
  reportLost({ places, isPeer, grants, disputes });
}

/**
 * Says who lost what: first what somebody has as it is, then what overlaps somebody's. Words and order depend on who
 * has what now and not on the turn in which he got it, so that nothing is reported anew while that stays.
 */
function reportLost({
  places,
  isPeer,
  grants,
  disputes,
}: Pick<PrefixDispute, "places" | "isPeer" | "disputes"> & { readonly grants: Grants }): void {
  const given = new Grants();
  for (const place of places) {
    const owner = grants.ownerOf(place);
    if (owner !== undefined) given.give(place, owner);
  }
  for (const asItIs of [true, false]) {
    for (const place of places) {
      if ((grants.ownerOf(place) !== undefined) !== asItIs) continue;
      for (const claimant of place.claimants) {
        if (claimant === own || !isPeer(claimant)) continue;
        const taken = given.inTheWayOf(place, claimant);
        if (taken !== undefined) disputes.losePrefix(claimant, place.prefix, taken);
      }
    }
  }
}

/** A place that has been given. */
interface Grant {
  readonly prefix: Prefix;
  readonly owner: number;
}

/** What has been given so far. */
class Grants {
  readonly #at = new Map<Place, Grant>();
  /**
   * For each place two grants at or inside it, of different owners as far as there are two: enough to tell
   * whether anybody but one given node has a part in it.
   */
  readonly #within = new Map<Place, { readonly first: Grant; readonly other?: Grant }>();

  give(place: Place, owner: number): void {
    const grant = { prefix: place.prefix, owner };
    this.#at.set(place, grant);
    for (let each: Place | undefined = place; each !== undefined; each = each.parent) {
      const within = this.#within.get(each);
      if (within === undefined) this.#within.set(each, { first: grant });
      else if (within.other === undefined && within.first.owner !== owner) {
        this.#within.set(each, { first: within.first, other: grant });
      }
    }
  }

  /** Who has exactly this place. */
  ownerOf(place: Place): number | undefined {
    return this.#at.get(place)?.owner;
  }

  /** A grant of somebody else that overlaps the place. */
  inTheWayOf(place: Place, claimant: number): Grant | undefined {
    for (let each = place.parent; each !== undefined; each = each.parent) {
      const grant = this.#at.get(each);
      if (grant !== undefined && grant.owner !== claimant) return grant;
    }
    const within = this.#within.get(place);
    return within?.first.owner === claimant ? within.other : within?.first;
  }
}
