/**
 * The mesh: which node is a peer with which prefixes, when all claims are seen together (C4.5, C4.6).
 *
 * Deterministic: the same claims, own prefixes and incumbents give the same mesh in whatever order they come.
 */
import type { Claim } from "./claim.ts";
import type { NodeId } from "./node.ts";
import type { PublicKey } from "./key.ts";
import type { Address, Prefix } from "./prefix.ts";
import type { Problem } from "./problem.ts";

export interface Peer {
  readonly nodeId: NodeId;
  readonly publicKey: PublicKey;
  /** Announced address; the port is the same for the whole mesh. */
  readonly address?: Address;
  /** Sorted. No two peers' prefixes overlap, nor any with this node's own. */
  readonly prefixes: readonly Prefix[];
}

export interface Mesh {
  /** Sorted by node ID. */
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
  /** Of every node but this one. */
  readonly claims: readonly Claim[];
  /** What this node announces: nobody else gets any of it. */
  readonly ownPrefixes: readonly Prefix[];
  readonly incumbents: Incumbents;
}

export function buildMesh(_input: MeshInput): { readonly mesh: Mesh; readonly problems: readonly Problem[] } {
  throw new Error("unwritten");
}

export function incumbentsOf(_mesh: Mesh): Incumbents {
  throw new Error("unwritten");
}
