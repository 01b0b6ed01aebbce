/**
 * What this node tells the Curator, and what of it becomes a loopback address (C4.2, C4.3).
 *
 * The Curator refuses an announcement as a whole when one prefix lies outside ClusterNet or has host bits, so such a
 * prefix is left out here and reported: the others must not suffer for it.
 */
import type { PublicKey } from "./key.ts";
import type { Node, NodeId } from "./node.ts";
import { type Address, containsPrefix, decodePrefix, firstHost, hostPrefix, type Prefix } from "./prefix.ts";
import { type Problem, quote } from "./problem.ts";

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
  /** Pod prefixes outside ClusterNet (or all of it) or with host bits: not announced. */
  readonly problems: readonly Problem[];
}

export function planAnnouncement(input: AnnouncementInput): OwnClaim {
  const { self, publicKey, externalAddress, clusterNets } = input;
  const prefixes = new Map<string, Prefix>();
  if (externalAddress !== undefined) {
    const host = hostPrefix(externalAddress);
    prefixes.set(host.text, host);
  }
  const loopbackAddresses = new Map<string, Address>();
  const problems = new Map<string, Problem>();
  for (const prefix of input.podPrefixes) {
    if (prefixes.has(prefix.text)) continue;
    const refusal = judgePodPrefix(prefix, clusterNets);
    if (refusal !== undefined) {
      const message = `Cannot announce pod prefix ${prefix.text} of node ${quote(self)}: ${refusal.reason}`;
      problems.set(prefix.text, { kind: refusal.kind, nodeId: self, message });
      continue;
    }
    prefixes.set(prefix.text, prefix);
    const address = firstHost(prefix);
    loopbackAddresses.set(address.text, address);
  }
  return {
    announcement: { publicKey, prefixes: [...prefixes.values()] },
    loopbackAddresses: [...loopbackAddresses.values()],
    problems: [...problems.values()],
  };
}

/** True when the picture shows this node exactly as announced (order and spelling of prefixes aside). */
export function isAnnounced(announcement: Announcement, self: Node | undefined): boolean {
  if (self === undefined || self.publicKey !== announcement.publicKey) return false;
  // More than are looked at: whatever they are, not what this node announced.
  if (self.prefixCount !== self.prefixes.length) return false;
  const shown = new Set(
    self.prefixes.map((text) => {
      const prefix = decodePrefix(text);
      return "reason" in prefix ? text : prefix.text;
    }),
  );
  const announced = new Set(announcement.prefixes.map(({ text }) => text));
  return shown.size === announced.size && [...announced].every((text) => shown.has(text));
}

function judgePodPrefix(
  prefix: Prefix,
  clusterNets: readonly Prefix[],
):
  | { readonly kind: "prefix-malformed" | "prefix-outside" | "prefix-too-wide"; readonly reason: string }
  | undefined {
  // `Prefixes` keeps host bits, as Go does: which network is meant is for whoever gave them to say.
  const read = decodePrefix(prefix.text);
  if ("reason" in read) return { kind: "prefix-malformed", reason: `it ${read.reason}` };
  const clusterNet = clusterNets.find(({ family }) => family === prefix.family);
  if (clusterNet === undefined) {
    return { kind: "prefix-outside", reason: `no ClusterNet is IPv${prefix.family}` };
  }
  if (containsPrefix(prefix, clusterNet)) {
    return { kind: "prefix-too-wide", reason: `it takes in all of ClusterNet ${clusterNet.text}` };
  }
  if (containsPrefix(clusterNet, prefix)) return undefined;
  return { kind: "prefix-outside", reason: `it lies outside ClusterNet ${clusterNet.text}` };
}
