/**
 * The nodes that are known, folded from watch events, and whether they are a picture to remove by (C4.8).
 *
 * A new stream starts a new set of `current` nodes, laid over what was `carried` from before (the last file, or
 * the stream before). Until the picture of the stream is full and believed, carried nodes stay: nothing is
 * removed on a guess. A fold never changes its argument (maps are shared where nothing changed).
 */
import type { Node, NodeId } from "./node.ts";

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
  readonly current: ReadonlyMap<NodeId, Node>;
  readonly carried: ReadonlyMap<NodeId, Node>;
  readonly picture: Picture;
  /** The first picture that was held and not agreed with yet. */
  readonly hold?: Hold;
}

/** A picture may remove, by absence, at most half of the peers when they are this many or more (C4.8). */
export const shrinkFloor = 4;
/** A held picture needs another stream's agreement at least this much later (C4.8). */
export const holdMs = 5 * 60_000;

/** The set before any Curator answered: what the last file says, or nothing. */
export function initialNodeSet(_self: NodeId, _fromFile: readonly Node[]): NodeSet {
  throw new Error("unwritten");
}

/** A new stream was opened: everything known is carried. */
export function foldStreamOpened(_set: NodeSet): NodeSet {
  throw new Error("unwritten");
}

export interface FoldContext {
  readonly nowMs: number;
  /** Nodes that are peers in the mesh that is applied: what "half of the peers" counts. */
  readonly peers: ReadonlySet<NodeId>;
}

export function foldEvent(_set: NodeSet, _event: NodeEvent, _context: FoldContext): NodeSet {
  throw new Error("unwritten");
}

/** All nodes to build the mesh of, this node itself left out: carried overlaid by current. */
export function knownNodes(_set: NodeSet): readonly Node[] {
  throw new Error("unwritten");
}

/** This node itself as the current stream shows it. */
export function selfNode(_set: NodeSet): Node | undefined {
  throw new Error("unwritten");
}
