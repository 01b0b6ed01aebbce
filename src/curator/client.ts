/**
 * The Curator client that `Service` takes, made of addresses.
 */
import { systemClock, type Clock } from "../async.ts";
import { asNodeId, nodeIdProblem } from "../core/node.ts";
import { ClusternetError } from "../errors.ts";
import { silentLogger, type Logger } from "../log.ts";
import { createFollower, type CuratorFollower } from "./follower.ts";
import { connectGrpc } from "./grpc-connection.ts";

export interface CuratorClientOptions {
  /** HOST:PORT, tried in turn. At least one. */
  readonly addresses: readonly string[];
  /** This node's ID. */
  readonly nodeId: string;
  /** Plain text, and this node names itself: the only way in this version, to be chosen on purpose. */
  readonly insecure: true;
  readonly log?: Logger;
  readonly clock?: Clock;
}

/** Follows whichever Curator answers. Nothing is dialled before it is followed. Throws ClusternetError for a node ID that cannot be. */
export function createCurator(options: CuratorClientOptions): CuratorFollower {
  const nodeId = asNodeId(options.nodeId);
  if (nodeId === undefined) throw new ClusternetError(nodeIdProblem(options.nodeId));
  return createFollower(
    { addresses: options.addresses, self: nodeId, connect: (address) => connectGrpc(address, { nodeId }) },
    { clock: options.clock ?? systemClock, log: options.log ?? silentLogger },
  );
}
