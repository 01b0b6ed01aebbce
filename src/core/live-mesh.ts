/**
 * The mesh, kept up to date claim by claim: exactly what core/mesh.ts would build of all claims, at the cost of what
 * changed (C4.5).
 *
 * Whether a claim gets its prefixes and its key depends on those that it meets, on those that they meet, and so on, and
 * on nobody else. So an index tells who is connected in this way with what changed, and only those are built anew; a
 * claim that meets nobody is a peer as it is. A peer and a list that did not change stay the same objects, so that
 * whoever works on a mesh can tell by that what to look at.
 *
 * Who holds all that he claims keeps it whatever others claim. So the search ends at him, or one node that claims all of
 * ClusterNet in pieces would connect everybody with everybody: of those that he meets a few stand for all of them.
 */
import { maxProblemsOfNode, type Claim } from "./claim.ts";
import type { PublicKey } from "./key.ts";
import {
  buildMesh,
  findPeer,
  incumbentsOf,
  noIncumbents,
  peerOf,
  placeOfPeer,
  samePeer,
  type BuiltMesh,
  type Incumbents,
  type Mesh,
  type Peer,
} from "./mesh.ts";
import type { NodeId } from "./node.ts";
import {
  collectOwners,
  ownersOf,
  PrefixIndex,
  withoutOwner,
  withOwner,
  type Owners,
} from "./prefix-index.ts";
import { fewPrefixes, type Prefix } from "./prefix.ts";
import type { Problem } from "./problem.ts";

const none: readonly Prefix[] = [];
const nothing: BuiltMesh = { mesh: { peers: [] }, problems: [] };

/** Of so many claims at most it is counted one by one whom they meet; beyond that, all whom they meet are built anew. */
const maxCounted = 64;

interface Connected {
  readonly reached: ReadonlySet<NodeId>;
  /** Claims that meet nobody. */
  readonly alone: readonly Claim[];
  /** Claims that are to be decided together, and some of those who keep what they have in their way. */
  readonly disputed: readonly Claim[];
  readonly met: ReadonlyMap<NodeId, number>;
}

export class LiveMesh {
  readonly #self: NodeId;
  readonly #claims = new Map<NodeId, Claim>();
  /** The prefixes of all claims, and under this node's ID its own. */
  readonly #index = new PrefixIndex();
  readonly #keys = new Map<PublicKey, Owners>();
  #ownPrefixes: readonly Prefix[] = [];
  /** Nodes about which it must be decided again. */
  readonly #unsettled = new Set<NodeId>();
  /**
   * Nodes that changed since the mesh was held, or have not all that they claim. All others keep what they have. Empty
   * until it is held for the first time, when nobody keeps anything.
   */
  readonly #contested = new Set<NodeId>();
  readonly #problems = new Map<NodeId, readonly Problem[]>();
  #built = nothing;
  /** The mesh by which it is known who held what before; undefined: `#incumbents` says it. */
  #held: Mesh | undefined;
  #incumbents: () => Incumbents;
  /** No two have ever had an address or a key in common, this node's own among them, so that nobody needs to be looked for. */
  #isPeaceful = true;

  /**
   * Whoever is among the `incumbents` holds what he claims until `hold` is called for the first time. They are asked for
   * when that decides anything.
   */
  constructor(self: NodeId, incumbents: () => Incumbents) {
    this.#self = self;
    this.#incumbents = incumbents;
  }

  /** Puts the claim in place of the one that its node had. */
  set(claim: Claim): void {
    this.#replace(claim.nodeId, claim);
  }

  /** The node claims nothing any more. */
  delete(nodeId: NodeId): void {
    this.#replace(nodeId, undefined);
  }

  /** What the node claims. */
  claimOf(nodeId: NodeId): Claim | undefined {
    return this.#claims.get(nodeId);
  }

  /** What this node announces: nobody else gets any of it. */
  setOwnPrefixes(prefixes: readonly Prefix[]): void {
    if (prefixes === this.#ownPrefixes) return;
    for (const prefix of this.#ownPrefixes) this.#release(this.#self, prefix);
    this.#ownPrefixes = prefixes;
    for (const prefix of prefixes) {
      if (this.#index.add({ owner: this.#self, prefix })) this.#isPeaceful = false;
      this.#index.collectOwners(prefix, this.#unsettled);
    }
    if (this.#held !== undefined) for (const nodeId of this.#unsettled) this.#contested.add(nodeId);
  }

  /** Whoever has something in the mesh as last settled keeps it from now on while he claims it (C4.5). */
  hold(): void {
    const { mesh } = this.#built;
    if (this.#held === undefined && !this.#isAllGiven(mesh)) {
      for (const nodeId of this.#claims.keys()) this.#contested.add(nodeId);
    }
    this.#held = mesh;
    // Nobody asks again, and they may know all that was there at the start.
    this.#incumbents = () => noIncumbents;
    for (const nodeId of this.#contested) {
      const claim = this.#claims.get(nodeId);
      if (claim === undefined || findPeer(mesh, nodeId)?.prefixes.length === claim.prefixes.length) {
        this.#contested.delete(nodeId);
      }
    }
  }

  /** Everybody has all that he claims: of a whole picture that is seen sooner than who has not. */
  #isAllGiven({ peers }: Mesh): boolean {
    return (
      peers.length === this.#claims.size &&
      peers.every(({ nodeId, prefixes }) => this.#claims.get(nodeId)?.prefixes.length === prefixes.length)
    );
  }

  /** The mesh of all claims. The same object as before when nothing changed. */
  settle(): BuiltMesh {
    if (this.#unsettled.size === 0) return this.#built;
    const { reached, alone, disputed, met } = this.#isPeaceful ? this.#notConnected() : this.#connected();
    const built =
      disputed.length === 0
        ? nothing
        : buildMesh({
            claims: disputed,
            ownPrefixes: this.#ownPrefixes,
            incumbents: this.#held === undefined ? this.#incumbents() : heldAmong(disputed, this.#held),
            met,
          });
    this.#unsettled.clear();
    const peers = new Map<NodeId, Peer>();
    for (const claim of alone) {
      const peer = peerOf(claim, claim.prefixes);
      if (peer !== undefined) peers.set(claim.nodeId, peer);
    }
    for (const peer of built.mesh.peers) peers.set(peer.nodeId, peer);
    const mesh = mergePeers(this.#built.mesh, reached, peers);
    const problems = this.#mergeProblems(reached, [
      ...alone.flatMap((claim) => claim.problems),
      ...built.problems,
    ]);
    if (mesh !== this.#built.mesh || problems !== this.#built.problems) this.#built = { mesh, problems };
    return this.#built;
  }

  #replace(nodeId: NodeId, claim: Claim | undefined): void {
    const before = this.#claims.get(nodeId);
    if (before === claim) return;
    const had = before?.prefixes ?? none;
    const has = claim?.prefixes ?? none;
    if (before?.publicKey !== undefined && before.publicKey !== claim?.publicKey) {
      const owners = withoutOwner(this.#keys.get(before.publicKey), nodeId);
      collectOwners(owners, this.#unsettled);
      if (owners === undefined) this.#keys.delete(before.publicKey);
      else this.#keys.set(before.publicKey, owners);
    }
    for (const prefix of missingFrom(has, had)) this.#release(nodeId, prefix);
    for (const prefix of missingFrom(had, has)) {
      if (this.#index.add({ owner: nodeId, prefix })) this.#isPeaceful = false;
    }
    if (claim === undefined) {
      this.#claims.delete(nodeId);
    } else {
      this.#claims.set(nodeId, claim);
      const { publicKey } = claim;
      if (publicKey !== undefined && publicKey !== before?.publicKey) {
        const owners = withOwner(this.#keys.get(publicKey), nodeId);
        this.#keys.set(publicKey, owners);
        if (owners !== nodeId) this.#isPeaceful = false;
      }
    }
    this.#unsettled.add(nodeId);
    if (this.#held !== undefined) this.#contested.add(nodeId);
  }

  /** Takes a prefix from a node: for all that it met, things may be otherwise from now on. */
  #release(owner: NodeId, prefix: Prefix): void {
    this.#index.delete({ owner, prefix });
    this.#index.collectOwners(prefix, this.#unsettled);
  }

  /** Those that are not settled, while nobody meets anybody. */
  #notConnected(): Connected {
    const alone: Claim[] = [];
    const disputed: Claim[] = [];
    for (const nodeId of this.#unsettled) {
      const claim = this.#claims.get(nodeId);
      if (claim === undefined) continue;
      if (claim.problemCount <= maxProblemsOfNode) alone.push(claim);
      else disputed.push(claim);
    }
    return { reached: new Set(this.#unsettled), alone, disputed, met: new Map() };
  }

  /**
   * Everybody whose part may have changed: those not settled, and all that are connected with them by what they claim.
   * Without `cut` the search goes on through who keeps all he has, which is cheaper when too much would be left out.
   */
  #connected(cut = true): Connected {
    const isFixed = (nodeId: NodeId): boolean =>
      cut && this.#held !== undefined && !this.#contested.has(nodeId);
    const reached = new Set<NodeId>();
    for (const nodeId of this.#unsettled) if (!isFixed(nodeId)) reached.add(nodeId);
    const fixed = new Set<NodeId>();
    const alone: Claim[] = [];
    const disputed: Claim[] = [];
    const uncounted: Claim[] = [];
    /** Prefixes and keys that have been followed, for 10,000 nodes may share one, and whether somebody was left out. */
    const followed = new Map<string, boolean>();
    // A set shows what is added to it while it is gone through.
    for (const nodeId of reached) {
      const claim = this.#claims.get(nodeId);
      if (claim === undefined) continue;
      let isAlone = claim.problemCount <= maxProblemsOfNode;
      let isCounted = true;
      const { publicKey, prefixes } = claim;
      const sharers = publicKey === undefined ? undefined : this.#keys.get(publicKey);
      if (publicKey !== undefined && sharers !== nodeId) {
        isAlone = false;
        if (!followed.has(publicKey)) {
          for (const other of ownersOf(sharers)) (isFixed(other) ? fixed : reached).add(other);
        }
        followed.set(publicKey, false);
      }
      for (const prefix of prefixes) {
        if (this.#index.findOther(nodeId, prefix) === undefined) continue;
        isAlone = false;
        const leavesOut = followed.get(prefix.text) ?? this.#follow(prefix, isFixed, { reached, fixed });
        followed.set(prefix.text, leavesOut);
        isCounted &&= !leavesOut;
      }
      if (isAlone) alone.push(claim);
      else disputed.push(claim);
      if (!isCounted) uncounted.push(claim);
    }
    if (uncounted.length > maxCounted) return this.#connected(false);
    // It claims nothing here, and connects nobody with anybody: it has its own whatever others claim.
    reached.delete(this.#self);
    for (const nodeId of fixed) {
      const claim = this.#claims.get(nodeId);
      if (claim !== undefined) disputed.push(claim);
    }
    return {
      reached,
      alone,
      disputed,
      met: new Map(uncounted.map((each) => [each.nodeId, this.#countMet(each)])),
    };
  }

  /**
   * Adds everybody that a prefix meets. Of those inside it that are fixed the first one stands for all: the prefix cannot
   * be had, and this is who has a part of it. True when others were left out for that.
   */
  #follow(
    prefix: Prefix,
    isFixed: (nodeId: NodeId) => boolean,
    { reached, fixed }: { readonly reached: Set<NodeId>; readonly fixed: Set<NodeId> },
  ): boolean {
    let [isTaken, leavesOut] = [false, false];
    this.#index.visitOwners(prefix, (owners, isInside) => {
      for (const owner of ownersOf(owners)) {
        if (owner === this.#self || !isFixed(owner)) reached.add(owner);
        else if (isInside && isTaken) leavesOut = true;
        else {
          fixed.add(owner);
          isTaken ||= isInside;
        }
      }
    });
    return leavesOut;
  }

  #countMet({ nodeId, publicKey, prefixes }: Claim): number {
    const met = new Set<NodeId>();
    if (publicKey !== undefined) collectOwners(this.#keys.get(publicKey), met);
    for (const prefix of prefixes) this.#index.collectOwners(prefix, met);
    met.delete(this.#self);
    met.delete(nodeId);
    return met.size;
  }

  #mergeProblems(reached: Iterable<NodeId>, found: readonly Problem[]): readonly Problem[] {
    if (found.length === 0 && this.#problems.size === 0) return this.#built.problems;
    const byNode = Map.groupBy(found, ({ nodeId }) => nodeId);
    let changed = false;
    for (const nodeId of reached) {
      const problems = byNode.get(nodeId) ?? [];
      const before = this.#problems.get(nodeId) ?? [];
      if (sameProblems(before, problems)) continue;
      changed = true;
      if (problems.length === 0) this.#problems.delete(nodeId);
      else this.#problems.set(nodeId, problems);
    }
    if (!changed) return this.#built.problems;
    return [...this.#problems].toSorted(([a], [b]) => (a < b ? -1 : 1)).flatMap(([, problems]) => problems);
  }
}

/** Those of `prefixes` that the others lack. */
function missingFrom(others: readonly Prefix[], prefixes: readonly Prefix[]): readonly Prefix[] {
  if (others.length === 0) return prefixes;
  if (others.length > fewPrefixes) {
    const texts = new Set(others.map(({ text }) => text));
    return prefixes.filter(({ text }) => !texts.has(text));
  }
  return prefixes.filter((prefix) => !others.some((each) => each === prefix || each.text === prefix.text));
}

/** Who of these held what: others' holdings decide nothing among them. */
function heldAmong(claims: readonly Claim[], held: Mesh): Incumbents {
  return incumbentsOf({ peers: claims.flatMap(({ nodeId }) => findPeer(held, nodeId) ?? []) });
}

/** Up to so many peers are put one by one into a copy of the list; more than that are merged with it. */
const spliced = 16;

/** A node that is another peer than before, or one no longer, or one for the first time. */
interface Replacement {
  readonly nodeId: NodeId;
  /** Where it is or would be in the mesh of before. */
  readonly at: number;
  readonly old: Peer | undefined;
  readonly peer: Peer | undefined;
}

/** The mesh with the nodes that were reached as they are now; the same object when none is otherwise. */
function mergePeers(before: Mesh, reached: ReadonlySet<NodeId>, now: ReadonlyMap<NodeId, Peer>): Mesh {
  if (before.peers.length === 0) return now.size === 0 ? before : { peers: sortedById([...now.values()]) };
  const changed: Replacement[] = [];
  for (const nodeId of reached) {
    const at = placeOfPeer(before, nodeId);
    const found = before.peers[at];
    const old = found?.nodeId === nodeId ? found : undefined;
    const peer = now.get(nodeId);
    const isSame = old === undefined || peer === undefined ? old === peer : samePeer(old, peer);
    if (!isSame) changed.push({ nodeId, at, old, peer });
  }
  if (changed.length === 0) return before;
  const peers = before.peers.slice();
  // Where everybody stays at his place, as nearly always, nobody else is moved.
  const moving: Replacement[] = [];
  for (const change of changed) {
    if (change.old === undefined || change.peer === undefined) moving.push(change);
    else peers[change.at] = change.peer;
  }
  if (moving.length <= spliced) {
    for (const { nodeId, old, peer } of moving) {
      const added = peer === undefined ? [] : [peer];
      peers.splice(placeOfPeer({ peers }, nodeId), old === undefined ? 0 : 1, ...added);
    }
    return { peers };
  }
  moving.sort((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
  const parts: (readonly Peer[])[] = [];
  let from = 0;
  for (const { at, old, peer } of moving) {
    parts.push(peers.slice(from, at), peer === undefined ? [] : [peer]);
    from = old === undefined ? at : at + 1;
  }
  parts.push(peers.slice(from));
  return { peers: parts.flat() };
}

/** Those of a file or a picture are in order nearly always. */
function sortedById(peers: readonly Peer[]): readonly Peer[] {
  const isBehind = ({ nodeId }: Peer, index: number): boolean => (peers[index - 1]?.nodeId ?? "") < nodeId;
  return peers.every(isBehind) ? peers : peers.toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
}

function sameProblems(a: readonly Problem[], b: readonly Problem[]): boolean {
  return (
    a.length === b.length &&
    a.every(({ kind, message }, index) => kind === b[index]?.kind && message === b[index]?.message)
  );
}
