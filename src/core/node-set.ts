/**
 * The nodes that are known, folded from watch events, and whether they are a picture to remove by (C4.8).
 *
 * A new stream starts a new set of `current` nodes; what was known before (from the last file, or from the
 * stream before) is `carried` until the new stream names it. Until the picture of the stream is full and
 * believed, carried nodes stay: nothing is removed on a guess, only by a tombstone.
 *
 * A fold never changes its argument, and gives it back when nothing changed; a node that comes again unchanged
 * stays the same object, so what was computed of it stays valid. What a fold costs depends on the event alone.
 */
import { sameNode, withTextsOf, type Node, type NodeId } from "./node.ts";
import { SharedMap } from "./shared-map.ts";

/** One decoded WatchEvent. `nodes` are taken in first and `tombstones` after them (C2). */
export interface NodeEvent {
  readonly nodes: readonly Node[];
  readonly tombstones: readonly NodeId[];
  /** Carries LAST_BACKLOGGED. */
  readonly lastBacklogged: boolean;
}

export type Picture =
  /** The backlog is still coming. */
  | "partial"
  /** Full and believed: `carried` is empty from here on. */
  | "believed"
  /** Full, but without this node: not believed until this node appears. */
  | "without-self"
  /** Full, but it would remove too much: held until another stream agrees. */
  | "shrunk";

/** A picture that was held as shrunk: when (monotonic) and on which stream. */
export interface Hold {
  readonly sinceMs: number;
  readonly stream: number;
}

export interface NodeSet {
  readonly self: NodeId;
  /** Number of the stream; 0 before the first. */
  readonly stream: number;
  /** What the current stream has named, this node itself too. */
  readonly current: SharedMap<NodeId, Node>;
  /** What was known before and the current stream has not named: never holds a node that is in `current`. */
  readonly carried: SharedMap<NodeId, Node>;
  readonly picture: Picture;
  /** The first picture that was held and not agreed with yet. */
  readonly hold?: Hold;
}

/** A picture may remove, by absence, at most half of the peers when they are this many or more (C4.8). */
const shrinkFloor = 4;
/** A held picture needs another stream's agreement at least this much later (C4.8). */
export const holdMs = 5 * 60_000;

const noNodes: SharedMap<NodeId, Node> = SharedMap.of(new Map());

/** The set before any Curator answered: what the last file says, or nothing. */
export function initialNodeSet(self: NodeId, fromFile: readonly Node[]): NodeSet {
  return {
    self,
    stream: 0,
    current: noNodes,
    carried: SharedMap.of(new Map(fromFile.map((node) => [node.id, node]))),
    picture: "partial",
  };
}

/** A new stream was opened: everything known is carried, and a picture that was held stays remembered. */
export function foldStreamOpened(set: NodeSet, stream: number = set.stream + 1): NodeSet {
  return {
    ...set,
    stream,
    current: noNodes,
    carried: set.carried.size === 0 ? set.current : SharedMap.of(new Map([...set.carried, ...set.current])),
    picture: "partial",
  };
}

export interface FoldContext {
  readonly nowMs: number;
  /** Nodes that are peers in the mesh that is applied: what "half of the peers" counts. */
  readonly peers: Pick<ReadonlySet<NodeId>, "has" | "size">;
}

/**
 * Takes in one event of the current stream. Returns `set` itself when the event changed nothing.
 *
 * Whether a full picture shrinks too much is decided when it is full; one that is held stays so on its stream,
 * however long, until nothing known is absent from it any more.
 */
export function foldEvent(set: NodeSet, event: NodeEvent, context: FoldContext): NodeSet {
  return judgePicture(foldNodes(set, [event]), event.lastBacklogged, context);
}

/** As `foldEvent` of one after the other, for a picture that is believed, in which no event decides anything. */
export function foldBelieved(set: NodeSet, events: readonly NodeEvent[]): NodeSet {
  if (set.picture !== "believed") throw new Error(`a picture that is ${set.picture} is judged at each event`);
  return foldNodes(set, events);
}

function foldNodes(set: NodeSet, events: readonly NodeEvent[]): NodeSet {
  const current = set.current.edit();
  const carried = set.carried.edit();
  for (const { nodes, tombstones } of events) {
    for (const node of nodes) {
      // What is in the one is not in the other.
      const known = current.get(node.id) ?? carried.delete(node.id);
      if (known === undefined) current.set(node.id, node);
      else current.set(known.id, sameNode(known, node) ? known : withTextsOf(known, node));
    }
    for (const id of tombstones) {
      current.delete(id);
      carried.delete(id);
    }
  }
  const folded = { current: current.finish(), carried: carried.finish() };
  return folded.current === set.current && folded.carried === set.carried ? set : { ...set, ...folded };
}

/** All nodes that the mesh is made of, this node itself left out: carried and current. */
export function knownNodes(set: NodeSet): readonly Node[] {
  return [...set.carried.values(), ...set.current.values()].filter((node) => node.id !== set.self);
}

/** The node as it is known, carried or current. */
export function findNode({ current, carried }: NodeSet, id: NodeId): Node | undefined {
  return current.get(id) ?? carried.get(id);
}

/** This node itself as the current stream shows it. */
export function selfNode(set: NodeSet): Node | undefined {
  return set.current.get(set.self);
}

/**
 * Decides about the picture once it is full. A believed one lets go of everything carried.
 *
 * A picture that is shrunk is judged no further by time on its own stream: only another stream's full
 * picture is a second opinion.
 */
function judgePicture(set: NodeSet, lastBacklogged: boolean, { nowMs, peers }: FoldContext): NodeSet {
  switch (set.picture) {
    case "believed":
      return set;
    case "partial":
      if (!lastBacklogged) return set;
      break;
    case "shrunk":
      if (set.carried.size > 0) return set;
      break;
    case "without-self":
      break;
  }
  if (!set.current.has(set.self)) {
    // One that lacks few of the peers speaks against what was held, whatever else it lacks.
    const judged = set.hold === undefined || removesTooMuch(set, peers) ? set : withoutHold(set);
    return judged.picture === "without-self" ? judged : { ...judged, picture: "without-self" };
  }
  const hold = set.hold ?? { sinceMs: nowMs, stream: set.stream };
  const agreed = hold.stream !== set.stream && nowMs - hold.sinceMs >= holdMs;
  if (!agreed && removesTooMuch(set, peers)) return { ...set, picture: "shrunk", hold };
  return { ...withoutHold(set), carried: noNodes, picture: "believed" };
}

function withoutHold({ hold: _cleared, ...rest }: NodeSet): NodeSet {
  return rest;
}

function removesTooMuch({ carried }: NodeSet, peers: FoldContext["peers"]): boolean {
  if (peers.size < shrinkFloor) return false;
  let absent = 0;
  for (const id of carried.keys()) if (peers.has(id)) absent++;
  return absent * 2 > peers.size;
}
