/**
 * The Curator client that `Service` takes, made of addresses.
 */
import { systemClock, type Clock } from "../async.ts";
import { asNodeId, nodeIdProblem } from "../core/node.ts";
import type { Prefix } from "../core/prefix.ts";
import { ClusternetError } from "../errors.ts";
import { silentLogger, type Logger } from "../log.ts";
import { createFollower, type CuratorFollower } from "./follower.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";
import { connectGrpc, type GrpcOptions } from "./grpc-connection.ts";

export type CuratorClientOptions = CuratorClientBasics & (InsecureCurators | TrustedCurators);

/** Plain text, and this node names itself: to be chosen on purpose. */
export interface InsecureCurators {
  readonly insecure: true;
}

/** TLS both ways. */
export interface TrustedCurators {
  readonly insecure?: false;
  /** Read anew for each connection. */
  readonly credentials: CredentialFiles;
  /** Only these node IDs are accepted as Curators. Default: every node of the cluster. */
  readonly curatorIds?: readonly string[];
}

export interface CuratorClientBasics {
  /** HOST:PORT, tried in turn. At least one. */
  readonly addresses: readonly string[];
  /** This node's ID. */
  readonly nodeId: string;
  /** A Curator inside one of these, also by what its name resolves to, is never dialled. */
  readonly clusterNets?: readonly Prefix[];
  /** Only Curators on this machine are followed to, whatever the cluster names. */
  readonly loopbackOnly?: boolean;
  readonly log?: Logger;
  readonly clock?: Clock;
}

/** Follows whichever Curator answers. Nothing is dialled or read before it is followed. Throws ClusternetError for a node ID that cannot be. */
export function createCurator(options: CuratorClientOptions): CuratorFollower {
  const nodeId = asNodeId(options.nodeId);
  if (nodeId === undefined) throw new ClusternetError(nodeIdProblem(options.nodeId));
  const trust: Pick<GrpcOptions, "tls" | "curatorIds"> = options.insecure === true ? {} : trustOf(options);
  return createFollower(
    {
      addresses: options.addresses,
      self: nodeId,
      connect: (address, expected) =>
        connectGrpc(address, {
          nodeId,
          ...trust,
          ...expected,
          ...(options.clusterNets !== undefined && { clusterNets: options.clusterNets }),
        }),
      ...(trust.curatorIds !== undefined && { curatorIds: trust.curatorIds }),
      ...(trust.tls !== undefined && { credentials: trust.tls }),
      ...(options.clusterNets !== undefined && { clusterNets: options.clusterNets }),
      ...(options.loopbackOnly !== undefined && { loopbackOnly: options.loopbackOnly }),
    },
    { clock: options.clock ?? systemClock, log: options.log ?? silentLogger },
  );
}

function trustOf({ credentials, curatorIds }: TrustedCurators): Pick<GrpcOptions, "tls" | "curatorIds"> {
  if (curatorIds === undefined) return { tls: credentials };
  return {
    tls: credentials,
    curatorIds: curatorIds.map((text) => {
      const id = asNodeId(text);
      if (id === undefined) throw new ClusternetError(nodeIdProblem(text));
      return id;
    }),
  };
}
