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
  fewPrefixes,
  type Prefix,
  type Unreadable,
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

/** One list for all nodes that have nothing of a kind. */
const none: readonly never[] = [];

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
    return { nodeId, prefixes: none, problems: none, problemCount: 0 };
  }
  const problems: Problem[] = [];
  let problemCount = 0;
  const report = ({ kind, message }: Refusal): void => {
    problemCount++;
    if (problems.length < maxProblemsOfNode) problems.push({ kind, nodeId, message });
  };

  const publicKey = node.publicKey === known?.publicKey ? known.publicKey : judgeKey(node, rules);
  if (typeof publicKey !== "string") report(publicKey);

  const address = known?.address?.text === node.externalAddress ? known.address : judgeAddress(node, rules);
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
  const ownHost = "kind" in address ? undefined : address;
  const accepted: Prefix[] = [];
  // What is wrong is reported once, however often the node says it.
  let refused: Set<string> | undefined;
  const count = Math.min(node.prefixes.length, maxPrefixesOfNode);
  for (let index = 0; index < count; index++) {
    const text = node.prefixes[index] ?? "";
    if (text === shadow || refused?.has(text) === true) continue;
    const prefix = node.parsed?.prefixes[index] ?? knownPrefix(text, known) ?? decodePrefix(text);
    const refusal = refusePrefix(prefix, ownHost, rules);
    if (refusal === undefined && !("reason" in prefix)) accepted.push(prefix);
    if (refusal !== undefined) {
      refused = (refused ?? new Set()).add(text);
      const message = `Cannot use prefix ${quote(text)} of node ${quote(nodeId)}: ${refusal.reason}`;
      report({ kind: refusal.kind, message });
    }
  }
  const prefixes = sortedOnce(accepted);
  // Of nearly every node, without the copies that leave out what it has not.
  if (typeof publicKey === "string" && !("kind" in address)) {
    return {
      nodeId,
      publicKey,
      address,
      prefixes,
      problems: problemCount === 0 ? none : problems,
      problemCount,
    };
  }
  return {
    nodeId,
    ...(typeof publicKey === "string" && { publicKey }),
    ...(!("kind" in address) && { address }),
    prefixes,
    problems,
    problemCount,
  };
}

/** The prefix of this text, if it was accepted before: most of what a node says again has not changed. */
function knownPrefix(text: string, known: Claim | undefined): Prefix | undefined {
  if (known === undefined || known.prefixes.length > fewPrefixes) return undefined;
  for (const prefix of known.prefixes) if (prefix.text === text) return prefix;
  return undefined;
}

/** Sorted, each once: one may have been given several times, or in several spellings. */
function sortedOnce(prefixes: readonly Prefix[]): readonly Prefix[] {
  const isBehind = (prefix: Prefix, index: number): boolean => {
    const before = prefixes[index - 1];
    return before === undefined || comparePrefixes(before, prefix) < 0;
  };
  if (prefixes.every(isBehind)) return prefixes;
  return prefixes
    .toSorted(comparePrefixes)
    .filter((prefix, index, sorted) => prefix.text !== sorted[index - 1]?.text);
}

/** True when the node's texts are exactly what the claim was accepted with, nothing having been left out of it. */
function saysTheSame(node: Node, claim: Claim): boolean {
  const { publicKey, address, prefixes, problemCount } = claim;
  if (publicKey === undefined || address === undefined || problemCount > 0) return false;
  if (node.publicKey !== publicKey || node.externalAddress !== address.text) return false;
  const { length } = prefixes;
  if (node.prefixCount !== length || node.prefixes.length !== length) return false;
  // None of the claim's comes twice, so that as many texts that are all of them are no others.
  if (length <= fewPrefixes) return prefixes.every(({ text }) => node.prefixes.includes(text));
  const texts = new Set(node.prefixes);
  return texts.size === length && prefixes.every(({ text }) => texts.has(text));
}

function judgeKey(node: Node, { ownPublicKey }: ClaimRules): PublicKey | Refusal {
  const key = node.parsed?.publicKey ?? decodePublicKey(node.publicKey);
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
  const address = node.parsed?.address ?? decodeAddress(node.externalAddress);
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

/** Why a prefix is not accepted; undefined: it is. `ownHost` is the node's external address, when that is usable. */
function refusePrefix(
  prefix: Prefix | Unreadable,
  ownHost: Address | undefined,
  rules: ClaimRules,
): { readonly kind: ProblemKind; readonly reason: string } | undefined {
  if ("reason" in prefix) return { kind: "prefix-malformed", reason: prefix.reason };
  if (
    ownHost !== undefined &&
    prefix.length === familyBits(prefix.family) &&
    containsAddress(prefix, ownHost)
  ) {
    return undefined;
  }
  const clusterNet = rules.clusterNets.find(({ family }) => family === prefix.family);
  if (clusterNet === undefined) {
    return { kind: "prefix-outside", reason: `no ClusterNet is IPv${prefix.family}` };
  }
  if (containsPrefix(prefix, clusterNet)) {
    return { kind: "prefix-too-wide", reason: `it takes in all of ClusterNet ${clusterNet.text}` };
  }
  if (!containsPrefix(clusterNet, prefix)) {
    const reason = `it lies outside ClusterNet ${clusterNet.text} and is not the node's external address`;
    return { kind: "prefix-outside", reason };
  }
  const shortest = shortestLength(clusterNet);
  if (prefix.length >= shortest) return undefined;
  const reason = `prefix length is ${prefix.length}, expected ${shortest} or more`;
  return { kind: "prefix-too-wide", reason };
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
