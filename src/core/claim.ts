/**
 * One node judged by itself: what it may claim of key, endpoint and prefixes (C4.4, C4.6, C4.7).
 *
 * Nothing here looks at other nodes; core/mesh.ts settles what two nodes claim. The result depends on the node
 * and the rules alone, so callers keep it as long as both stay the same.
 */
import type { Node, NodeId } from "./node.ts";
import type { PublicKey } from "./key.ts";
import type { Address, Prefix } from "./prefix.ts";
import type { Problem } from "./problem.ts";

export interface ClaimRules {
  /** One network per family at most. */
  readonly clusterNets: readonly Prefix[];
  readonly ownPublicKey: PublicKey;
  /** Canonical texts of every address on this host. */
  readonly hostAddresses: ReadonlySet<string>;
}

export interface Claim {
  readonly nodeId: NodeId;
  /** Absent: no usable key, so the node is no peer. */
  readonly publicKey?: PublicKey;
  /** Absent: a peer without endpoint. */
  readonly address?: Address;
  /** Acceptable prefixes, sorted, without duplicates. */
  readonly prefixes: readonly Prefix[];
  /** At most 16; the last one says how many more there were. */
  readonly problems: readonly Problem[];
}

/** Problems kept of one node (C4.4). */
export const maxProblemsOfNode = 16;

export function judgeNode(_node: Node, _rules: ClaimRules): Claim {
  throw new Error("unwritten");
}
