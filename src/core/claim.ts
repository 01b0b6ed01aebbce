/**
 * One node judged by itself: what it may claim of key, endpoint and prefixes (C4.4, C4.6, C4.7).
 *
 * Nothing here looks at other nodes; core/mesh.ts settles what two nodes claim. The result depends on the node
 * and the rules alone, so callers keep it as long as both stay the same. One bad field costs that field: the
 * rest of the node is kept.
 */
import { decodePublicKey, type PublicKey } from "./key.ts";
import { maxPrefixesOfNode, type Node, type NodeId } from "./node.ts";
import {
  type Address,
  comparePrefixes,
  containsAddress,
  containsPrefix,
  decodeAddress,
  decodePrefix,
  familyBits,
  hostPrefix,
  type Prefix,
  unusableReason,
} from "./prefix.ts";
import { type Problem, type ProblemKind, quote } from "./problem.ts";

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
  /** The first 16 at most. */
  readonly problems: readonly Problem[];
  /** How many problems there are, those beyond the first 16 too. */
  readonly problemCount: number;
}

/** Problems kept of one node (C4.4). */
export const maxProblemsOfNode = 16;

/** A refusal: what sort of problem, and the sentence about it. */
interface Refusal {
  readonly kind: ProblemKind;
  readonly message: string;
}

/**
 * `known` is what the same rules made of the node before: it is given back when the node says the same in another order
 * or about something else, which is found without reading any of its texts again.
 */
export function judgeNode(node: Node, rules: ClaimRules, known?: Claim): Claim {
  if (known !== undefined && saysTheSame(node, known)) return known;
  const nodeId = node.id;
  // Not on the mesh (yet): such a node may lack anything without being wrong.
  if (node.publicKey === "" && node.prefixCount === 0) {
    return { nodeId, prefixes: [], problems: [], problemCount: 0 };
  }
  const problems: Problem[] = [];
  let problemCount = 0;
  const report = ({ kind, message }: Refusal): void => {
    problemCount++;
    if (problems.length < maxProblemsOfNode) problems.push({ kind, nodeId, message });
  };

  const publicKey = judgeKey(node, rules);
  if (typeof publicKey !== "string") report(publicKey);

  const address = judgeAddress(node, rules);
  // A node without a usable address still announces it as a prefix, which is then outside: one cause, one problem.
  const shadow = "kind" in address ? node.prefixes.find((text) => isHostOutside(text, rules)) : undefined;
  if ("kind" in address) {
    const consequence = shadow === undefined ? "" : `; prefix ${quote(shadow)} is left out with it`;
    report({ kind: address.kind, message: address.message + consequence });
  }

  if (node.prefixCount > maxPrefixesOfNode) {
    report({
      kind: "prefix-malformed",
      message:
        `Cannot look at all prefixes of node ${quote(nodeId)}: ` +
        `${node.prefixCount} prefixes, expected at most ${maxPrefixesOfNode}`,
    });
  }
  const ownHost = "kind" in address ? undefined : hostPrefix(address).text;
  const accepted: Prefix[] = [];
  for (const text of new Set(node.prefixes.slice(0, maxPrefixesOfNode))) {
    if (text === shadow) continue;
    const prefix = judgePrefix(text, { nodeId, ownHost, rules });
    if ("kind" in prefix) report(prefix);
    else accepted.push(prefix);
  }
  accepted.sort(comparePrefixes);

  return {
    nodeId,
    ...(typeof publicKey === "string" && { publicKey }),
    ...(!("kind" in address) && { address }),
    // One prefix may have been given in several spellings.
    prefixes: accepted.filter((prefix, index) => prefix.text !== accepted[index - 1]?.text),
    problems,
    problemCount,
  };
}

/** True when the node's texts are exactly what the claim was accepted with, nothing having been left out of it. */
function saysTheSame(node: Node, claim: Claim): boolean {
  const { publicKey, address, prefixes, problemCount } = claim;
  if (publicKey === undefined || address === undefined || problemCount > 0) return false;
  if (node.publicKey !== publicKey || node.externalAddress !== address.text) return false;
  const { length } = prefixes;
  if (node.prefixCount !== length || node.prefixes.length !== length) return false;
  if (prefixes.every(({ text }, index) => text === node.prefixes[index])) return true;
  const texts = new Set(node.prefixes);
  return texts.size === length && prefixes.every(({ text }) => texts.has(text));
}

function judgeKey(node: Node, { ownPublicKey }: ClaimRules): PublicKey | Refusal {
  const key = decodePublicKey(node.publicKey);
  if (typeof key !== "string") {
    return { kind: "key-invalid", message: `Cannot use public key of node ${quote(node.id)}: ${key.reason}` };
  }
  if (key !== ownPublicKey) return key;
  // WireGuard drops such a peer without a word, so it must not be in the mesh that we believe to be applied.
  return {
    kind: "key-own",
    message: `Cannot use public key of node ${quote(node.id)}: it is this node's own key ${key}`,
  };
}

function judgeAddress(node: Node, { clusterNets, hostAddresses }: ClaimRules): Address | Refusal {
  if (node.externalAddress === "") {
    return {
      kind: "address-missing",
      message: `Cannot set an endpoint for node ${quote(node.id)}: it has reported no external address`,
    };
  }
  const refuse = (kind: ProblemKind, reason: string): Refusal => ({
    kind,
    message: `Cannot use external address ${quote(node.externalAddress)} of node ${quote(node.id)}: ${reason}`,
  });
  const address = decodeAddress(node.externalAddress);
  if ("reason" in address) return refuse("address-invalid", address.reason);
  if (address.text !== node.externalAddress) {
    return refuse("address-invalid", `not in canonical form, expected ${address.text}`);
  }
  const unusable = unusableReason(address);
  if (unusable !== undefined) return refuse("address-invalid", unusable);
  const inside = clusterNets.find((network) => containsAddress(network, address));
  if (inside !== undefined) {
    return refuse(
      "address-invalid",
      `it lies inside ClusterNet ${inside.text}, expected one outside the mesh`,
    );
  }
  if (hostAddresses.has(address.text)) return refuse("address-own", "it is an address of this host");
  return address;
}

interface PrefixContext {
  readonly nodeId: NodeId;
  /** Text of the node's external address as a single host, when that is usable. */
  readonly ownHost: string | undefined;
  readonly rules: ClaimRules;
}

function judgePrefix(text: string, { nodeId, ownHost, rules }: PrefixContext): Prefix | Refusal {
  const prefix = decodePrefix(text);
  if (!("reason" in prefix) && prefix.text === ownHost) return prefix;
  const refuse = (kind: ProblemKind, reason: string): Refusal => ({
    kind,
    message: `Cannot use prefix ${quote(text)} of node ${quote(nodeId)}: ${reason}`,
  });
  if ("reason" in prefix) return refuse("prefix-malformed", prefix.reason);
  const clusterNet = rules.clusterNets.find(({ family }) => family === prefix.family);
  if (clusterNet === undefined) return refuse("prefix-outside", `no ClusterNet is IPv${prefix.family}`);
  if (containsPrefix(prefix, clusterNet)) {
    return refuse("prefix-too-wide", `it takes in all of ClusterNet ${clusterNet.text}`);
  }
  if (!containsPrefix(clusterNet, prefix)) {
    return refuse(
      "prefix-outside",
      `it lies outside ClusterNet ${clusterNet.text} and is not the node's external address`,
    );
  }
  const shortest = shortestLength(clusterNet);
  if (prefix.length >= shortest) return prefix;
  return refuse("prefix-too-wide", `prefix length is ${prefix.length}, expected ${shortest} or more`);
}

/** The widest prefix that one node may have: a sixteenth of ClusterNet, but /24 and /64 are always narrow enough (C4.4). */
function shortestLength(clusterNet: Prefix): number {
  return Math.min(clusterNet.length + 4, clusterNet.family === 4 ? 24 : 64);
}

/** True for a prefix of one address outside ClusterNet: by its form somebody's external address. */
function isHostOutside(text: string, { clusterNets }: ClaimRules): boolean {
  const prefix = decodePrefix(text);
  return (
    !("reason" in prefix) &&
    prefix.length === familyBits(prefix.family) &&
    !clusterNets.some((network) => containsPrefix(network, prefix))
  );
}
