/**
 * What a node is refused for: the codes of the Metropolis Curator, and what this one refuses beyond it (contract
 * part 9). Pure: what is known of other nodes comes in as questions.
 *
 * The order of the checks is the real one's, as far as its answers show it: form of the key, then the caller's
 * place in the cluster, then key and prefixes against the others.
 */
import { Status } from "nice-grpc-common";
import { decodePublicKey, type PublicKey } from "../core/key.ts";
import { maxPrefixesOfNode, type NodeId } from "../core/node.ts";
import {
  containsAddress,
  containsPrefix,
  decodeAddress,
  decodePrefix,
  hostPrefix,
  parseAddress,
  unusableReason,
  type Prefix,
} from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import type { NodeClusterNetworking } from "../gen/common.ts";
import type { UpdateNodeStatusRequest } from "../gen/curator.ts";
import type { Holding } from "../core/prefix-index.ts";
import type { NodeCommand } from "../node-command.ts";
import { invalid, removedRefusal, type Refusal } from "./refusal.ts";
import { decodeStatus } from "./status-bytes.ts";

/** What the cluster knows of the caller: never heard of, taken out, or a member. */
export type Standing =
  | { readonly kind: "stranger" }
  | { readonly kind: "removed" }
  /** `externalAddress` is canonical. */
  | { readonly kind: "member"; readonly externalAddress: string };

export interface AdmissionRules {
  readonly clusterNets: readonly Prefix[];
  standingOf(id: NodeId): Standing;
  /** The node that announces or ever announced this key. */
  keyOwner(publicKey: PublicKey): NodeId | undefined;
  /** A prefix of another node than `id` that overlaps. */
  findOther(id: NodeId, prefix: Prefix): Holding | undefined;
  /** What a refusal tells the operator to do. */
  readonly nodeCommand: NodeCommand;
}

export interface AdmittedStatus {
  readonly externalAddress: string;
  /** Serialized NodeStatus without its time. */
  readonly timeless: Uint8Array;
}

export interface AdmittedAnnouncement {
  readonly publicKey: PublicKey;
  /** In the order given, duplicates too. */
  readonly prefixes: readonly Prefix[];
}

/** UpdateNodeStatus of the node `caller`. */
export function judgeStatus(
  caller: NodeId,
  request: UpdateNodeStatusRequest,
  rules: AdmissionRules,
): AdmittedStatus | Refusal {
  if (request.nodeId !== caller) {
    return {
      code: Status.PERMISSION_DENIED,
      message: `Cannot take status of node ${quote(request.nodeId)} from node ${quote(caller)}: expected its own`,
    };
  }
  if (rules.standingOf(caller).kind === "removed") return removedRefusal(caller, rules.nodeCommand);
  const reported = decodeStatus(request.status ?? new Uint8Array());
  if ("reason" in reported) return invalid(`Cannot take status: ${reported.reason}`);
  const { externalAddress: text, timeless } = reported;
  if (text === "") return invalid("Cannot take status: no external address");
  const unusable = unusableAddress(text, rules.clusterNets);
  if (unusable !== undefined) return invalid(`Cannot use external address ${quote(text)}: ${unusable}`);
  return { externalAddress: text, timeless };
}

function unusableAddress(text: string, clusterNets: readonly Prefix[]): string | undefined {
  const address = decodeAddress(text);
  if ("reason" in address) return address.reason;
  if (address.text !== text) return `not in canonical form, expected ${address.text}`;
  const net = clusterNets.find((each) => containsAddress(each, address));
  if (net !== undefined) return `it lies inside ClusterNet ${net.text}`;
  return unusableReason(address);
}

/** UpdateNodeClusterNetworking of the node `caller`. */
export function judgeAnnouncement(
  caller: NodeId,
  announced: NodeClusterNetworking | undefined,
  rules: AdmissionRules,
): AdmittedAnnouncement | Refusal {
  if (announced === undefined) return invalid("Cannot take announcement: it is empty");
  if (announced.wireguardPubkey === "") return invalid("Cannot take announcement: no public key");
  const publicKey = decodePublicKey(announced.wireguardPubkey);
  if (typeof publicKey !== "string") {
    // Not quoted: what somebody pastes into the wrong place may be a private key.
    return invalid(`Cannot use public key: ${publicKey.reason}`);
  }
  const standing = rules.standingOf(caller);
  if (standing.kind === "removed") return removedRefusal(caller, rules.nodeCommand);
  if (standing.kind === "stranger") {
    return {
      code: Status.FAILED_PRECONDITION,
      message: `Cannot take announcement of node ${quote(caller)}: it has not reported its status yet`,
    };
  }
  const owner = rules.keyOwner(publicKey) ?? caller;
  if (owner !== caller) {
    return invalid(`Cannot use public key ${publicKey}: it is or was the key of node ${quote(owner)}`);
  }
  const prefixes = judgePrefixes(caller, {
    texts: announced.prefixes.map(({ cidr }) => cidr),
    ownAddress: hostPrefix(parseAddress(standing.externalAddress)),
    rules,
  });
  return "code" in prefixes ? prefixes : { publicKey, prefixes };
}

interface PrefixInput {
  readonly texts: readonly string[];
  readonly ownAddress: Prefix;
  readonly rules: AdmissionRules;
}

function judgePrefixes(
  caller: NodeId,
  { texts, ownAddress, rules }: PrefixInput,
): readonly Prefix[] | Refusal {
  if (texts.length > maxPrefixesOfNode) {
    return invalid(
      `Cannot take announcement: ${texts.length} prefixes, expected at most ${maxPrefixesOfNode}`,
    );
  }
  const prefixes: Prefix[] = [];
  for (const text of texts) {
    const prefix = decodePrefix(text);
    if ("reason" in prefix) return invalid(`Cannot use prefix ${quote(text)}: ${prefix.reason}`);
    prefixes.push(prefix);
    // Two nodes behind one address are their own affair: the address is the node's by its status.
    if (prefix.text === ownAddress.text) continue;
    const net = rules.clusterNets.find((each) => containsPrefix(each, prefix));
    if (net === undefined) {
      const expected = [...rules.clusterNets.map((each) => `inside ${each.text}`), ownAddress.text].join(
        " or ",
      );
      return invalid(`Cannot use prefix ${prefix.text}: expected ${expected}`);
    }
    if (net.length === prefix.length) {
      return invalid(`Cannot use prefix ${prefix.text}: it is the whole ClusterNet`);
    }
    const other = rules.findOther(caller, prefix);
    if (other !== undefined) {
      return invalid(
        `Cannot use prefix ${prefix.text}: overlaps ${other.prefix.text} of node ${quote(other.owner)}; when that ` +
          `node is gone for good, take it out with: ${rules.nodeCommand("remove", other.owner)}`,
      );
    }
  }
  return prefixes;
}
