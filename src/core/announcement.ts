/**
 * What this node tells the Curator, and what of it becomes a loopback address (C4.2, C4.3).
 */
import type { PublicKey } from "./key.ts";
import type { Node, NodeId } from "./node.ts";
import type { Address, Prefix } from "./prefix.ts";
import type { Problem } from "./problem.ts";

export interface Announcement {
  readonly publicKey: PublicKey;
  /** External address as single host first, then the pod prefixes in the order given, duplicates merged. */
  readonly prefixes: readonly Prefix[];
}

export interface AnnouncementInput {
  readonly self: NodeId;
  readonly publicKey: PublicKey;
  readonly externalAddress?: Address;
  readonly podPrefixes: readonly Prefix[];
  readonly clusterNets: readonly Prefix[];
}

export interface OwnClaim {
  readonly announcement: Announcement;
  /** One per accepted pod prefix, in order, without duplicates. */
  readonly loopbackAddresses: readonly Address[];
  /** Pod prefixes outside ClusterNet (or all of it): not announced. */
  readonly problems: readonly Problem[];
}

export function planAnnouncement(_input: AnnouncementInput): OwnClaim {
  throw new Error("unwritten");
}

/** True when the picture shows this node exactly as announced (order of prefixes aside). */
export function isAnnounced(_announcement: Announcement, _self: Node | undefined): boolean {
  throw new Error("unwritten");
}
