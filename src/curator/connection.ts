/**
 * One connection to one Curator: the calls of the protocol in our own types.
 */
import type { Announcement } from "../core/announcement.ts";
import type { Address } from "../core/prefix.ts";
import type { NodeId } from "../core/node.ts";
import type { NodeEvent } from "../core/node-set.ts";
import type { Problem } from "../core/problem.ts";

/** An event of the watch stream, decoded node by node: what cannot be decoded of one node is a problem, never the event's. */
export interface DecodedEvent extends NodeEvent {
  /** `node-id` and the like: nodes that had to be left out. */
  readonly problems: readonly Problem[];
  /** Serialized NodeStatus of this node, when the event shows it: reporting sends the rest of it back unchanged (C5). */
  readonly selfStatus?: Uint8Array;
}

export interface CuratorConnection {
  /** HOST:PORT as dialled. */
  readonly address: string;
  /** One Watch call for all nodes. Ends, or throws CuratorError, when the stream does; returns when `signal` aborts. */
  watchNodes(signal: AbortSignal): AsyncIterable<DecodedEvent>;
  /** UpdateNodeClusterNetworking. Throws CuratorError. */
  announce(announcement: Announcement, signal: AbortSignal): Promise<void>;
  /** UpdateNodeStatus: the external address, and of `lastStatus` all the rest, unknown fields too. Throws CuratorError. */
  reportStatus(report: StatusReport, signal: AbortSignal): Promise<void>;
  close(): void;
}

export interface StatusReport {
  readonly nodeId: NodeId;
  readonly externalAddress: Address;
  /** The node's own NodeStatus as last watched. */
  readonly lastStatus?: Uint8Array;
  readonly time: Date;
}
