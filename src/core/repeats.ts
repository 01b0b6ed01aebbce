/**
 * Notices that a Curator sends its nodes again on a live stream: tombstones may then be lost (C2).
 *
 * After a loss of etcd the real Curator can send every node again, one by one, without LAST_BACKLOGGED and without
 * the tombstones of nodes deleted meanwhile. A status report also repeats a node with nothing changed but its
 * time, so single repeats mean nothing: only many different nodes within a short time do.
 */
import type { NodeEvent } from "./node-set.ts";
import { sameNode, type Node, type NodeId } from "./node.ts";

/** Repeats count together within this time. */
const repeatWindowMs = 10_000;
/** Repeats in the first minute of a stream mean nothing. */
const repeatQuietMs = 60_000;
/** At most one suspicion in this time: a cluster whose nodes all report their status every few seconds is no reason to open streams all day. */
const repeatPauseMs = 10 * 60_000;
/** Fewer repeated nodes than this are never suspicious. */
const repeatFloor = 3;

/** Nodes of the event that the `current` stream has named before, exactly so. Asked before the event is folded. */
export function repeatedNodes(
  { current }: { readonly current: ReadonlyMap<NodeId, Node> },
  event: NodeEvent,
): readonly NodeId[] {
  return event.nodes
    .filter((node) => {
      const known = current.get(node.id);
      return known !== undefined && sameNode(known, node);
    })
    .map((node) => node.id);
}

export interface RepeatedNode {
  readonly nodeId: NodeId;
  /** How many nodes are known, this one counted. */
  readonly known: number;
  readonly nowMs: number;
  /** When the stream was opened, by the same clock. */
  readonly streamOpenedMs: number;
}

/**
 * Counts the different nodes that were repeated within the last ten seconds. Lives as long as the agent, over all
 * of its streams.
 */
export class RepeatCounter {
  /** When each was last repeated, the oldest first. */
  readonly #lastMs = new Map<NodeId, number>();
  #suspectedMs: number | undefined;

  /** Takes in one repeat; true says: open the stream anew. */
  isSuspicious({ nodeId, known, nowMs, streamOpenedMs }: RepeatedNode): boolean {
    if (nowMs - streamOpenedMs < repeatQuietMs) return false;
    if (this.#suspectedMs !== undefined && nowMs - this.#suspectedMs < repeatPauseMs) return false;
    // Deleted first, so that the map stays ordered by time.
    this.#lastMs.delete(nodeId);
    this.#lastMs.set(nodeId, nowMs);
    for (const [id, lastMs] of this.#lastMs) {
      if (nowMs - lastMs <= repeatWindowMs) break;
      this.#lastMs.delete(id);
    }
    const repeated = this.#lastMs.size;
    if (repeated < repeatFloor || repeated * 2 < known) return false;
    this.#suspectedMs = nowMs;
    this.#lastMs.clear();
    return true;
  }
}
