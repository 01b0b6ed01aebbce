/**
 * Who calls: a node, known by what came with the call.
 *
 * Without TLS the caller names itself in the request metadata, so whoever reaches the port can be anybody; hence
 * the limits on where `--insecure` listens. With TLS its certificate says it (tls.ts).
 */
import { Status } from "nice-grpc-common";
import type { CallContext } from "nice-grpc-common";
import { asNodeId, nodeIdProblem, type NodeId } from "../core/node.ts";
import { invalid, type Refusal } from "./refusal.ts";

/** Metadata key in which a caller without TLS names itself. */
const callerMetadataKey = "clusternet-node-id";

/** Names the node that calls, or refuses (UNAUTHENTICATED; PERMISSION_DENIED for one of the cluster that is no node). */
export type IdentifyCaller = (context: CallContext) => NodeId | Refusal;

/** The caller by its own word. */
export const identifyInsecureCaller: IdentifyCaller = (context) => {
  const named = context.metadata.getAll(callerMetadataKey);
  const [text] = named;
  if (named.length !== 1 || typeof text !== "string") {
    return unauthenticated(
      `Cannot tell who calls: ${named.length} values of metadata ${callerMetadataKey}, expected one (this Curator runs without TLS)`,
    );
  }
  const id = curatorNodeId(text);
  return typeof id === "string" ? id : unauthenticated(id.message);
};

/**
 * A node ID that this Curator takes: as everywhere in the mesh, but without a slash, which the Metropolis Curator
 * refuses.
 */
export function curatorNodeId(text: string): NodeId | Refusal {
  const id = asNodeId(text);
  if (id === undefined) return invalid(nodeIdProblem(text));
  return id.includes("/") ? invalid(`Cannot use node ID "${id}": it has a slash`) : id;
}

/** It cannot be told who calls. */
export function unauthenticated(message: string): Refusal {
  return { code: Status.UNAUTHENTICATED, message };
}
