/**
 * One connection to one Curator: the calls of the protocol in our own types.
 */
import type { Announcement } from "../core/announcement.ts";
import type { LeaderAnswer } from "../core/curators.ts";
import type { Address } from "../core/prefix.ts";
import type { NodeId } from "../core/node.ts";
import type { NodeEvent } from "../core/node-set.ts";
import { quote, type Problem } from "../core/problem.ts";
import { defaultCuratorDirectory } from "../checks.ts";
import { nodeCommandOf } from "../node-command.ts";
import { CuratorError } from "../errors.ts";

/** An event of the watch stream, decoded node by node: what cannot be decoded of one node is a problem, never the event's. */
export interface DecodedEvent extends NodeEvent {
  /** `node-id` and the like: nodes that had to be left out. */
  readonly problems: readonly Problem[];
  /** Messages of problems that end: tombstones of nodes that had to be left out for their ID. */
  readonly ended?: readonly string[];
  /** Serialized NodeStatus of this node, when the event shows it: reporting sends the rest of it back unchanged (C5). */
  readonly selfStatus?: Uint8Array;
}

export interface CuratorConnection {
  /** HOST:PORT as dialled. */
  readonly address: string;
  /**
   * One Watch call for all nodes. Ends, or throws CuratorError, when the stream does; returns when `signal` aborts.
   * `onHeaders` is called when the Curator has taken the call, which it need not say before its first event.
   */
  watchNodes(signal: AbortSignal, onHeaders?: () => void): AsyncIterable<DecodedEvent>;
  /**
   * One GetCurrentLeader call: who leads, at once and perhaps at each change. Ends, or throws CuratorError, when there
   * is no leader (any more); returns when `signal` aborts.
   */
  watchLeader(signal: AbortSignal): AsyncIterable<LeaderAnswer>;
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

/** The largest event that is taken. */
export const maxEventBytes = 64 << 20;

/** Whether a watch ended because an event was larger than `maxEventBytes`, or larger than the Curator may send. */
export function isEventTooLarge(error: unknown): boolean {
  // The code alone also says "too busy"; grpc-js and Go's grpc word this case alike.
  return error instanceof CuratorError && error.code === 8 && error.message.includes("larger than max");
}

/** Whether the connection went away under a call: keepalive had no answer, or the other side closed it. */
export function isConnectionLost(error: unknown): boolean {
  // The code alone also says "no leader any more". The words are those of grpc-js 1.14.7.
  return error instanceof CuratorError && error.code === 14 && error.message.endsWith(": Connection dropped");
}

/** Whether a Curator answered that this node is not of its cluster (any more). */
export function isRemoved(error: unknown): boolean {
  return error instanceof CuratorError && error.code === 5;
}

/** What is said of a node that was removed. The same words from whichever call, so that it is one problem. */
export function removedProblem(self: NodeId): Problem {
  // Where that Curator keeps its data is not known here.
  const command = nodeCommandOf(defaultCuratorDirectory)("allow", self);
  return {
    kind: "announce-refused",
    nodeId: self,
    isRemoval: true,
    message:
      `This node was removed from the cluster: the Curator knows no node ${quote(self)} (NOT_FOUND). The mesh stays as ` +
      `it was; \`${command}\` on the Curator's machine, with --data-dir where the Curator has one, lets this node in again`,
  };
}

/** Something else than a Curator of this cluster answered. */
export function isUntrusted(error: unknown): boolean {
  return error instanceof CuratorError && error.untrusted;
}

/** Whether a Curator does not lead, or cannot say who does. */
export function isUnimplemented(error: unknown): boolean {
  return error instanceof CuratorError && error.code === 12;
}
