/**
 * Curators that the cluster names, and which of them may be dialled.
 *
 * A node writes into its own status that it runs a Curator, so that alone says nothing: only of a consensus member,
 * which the cluster's own roles name, it is believed (C2). Whatever is named is a help beside the addresses that
 * were given by hand, never instead of them, and never an address inside ClusterNet: the way to the Curator must not
 * lead through the mesh that it describes.
 */
import { asNodeId, type Node, type NodeId } from "./node.ts";
import {
  type Address,
  containsAddress,
  decodeAddress,
  parsePrefix,
  type Prefix,
  unusableReason,
} from "./prefix.ts";
import { renderEndpoint } from "./wg-config.ts";

/** A Curator that the cluster named. */
export interface NamedCurator {
  /** HOST:PORT to dial. */
  readonly address: string;
  /** The node whose Curator it is; absent for an address that was given by hand. */
  readonly nodeId?: NodeId;
}

/** What a Curator answers to the question who leads. */
export interface LeaderAnswer {
  readonly leaderNodeId: string;
  /** Empty when the leader has told no address. */
  readonly leaderHost: string;
  readonly leaderPort: number;
  /** The node whose Curator answers; empty when it does not say. */
  readonly thisNodeId: string;
}

/** So many Curators are remembered: a control plane has three, five or seven. */
export const maxLearnedCurators = 16;

/** One that is remembered: whoever takes over its address must not become a Curator by that. */
export type LearnedCurator = Required<NamedCurator>;

/** The Curators of consensus members that are reached outside the mesh, by node ID. */
export function learnedCurators(
  nodes: Iterable<Node>,
  clusterNets: readonly Prefix[],
): readonly LearnedCurator[] {
  const found: LearnedCurator[] = [];
  for (const { id, consensusMember, curatorPort, externalAddress } of nodes) {
    if (!consensusMember || curatorPort === undefined) continue;
    const address = outside(externalAddress, clusterNets);
    if (address === undefined || unusableReason(address) !== undefined) continue;
    found.push({ nodeId: id, address: renderEndpoint(address, curatorPort) });
  }
  return found.toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1)).slice(0, maxLearnedCurators);
}

/** The consensus members that a stream has named, and the Curators among them. */
export class MemberBook {
  readonly #members = new Map<NodeId, Node>();
  /** They may be otherwise than when Curators were last learned of them. */
  #hasChanged = false;
  #learned: readonly LearnedCurator[] = [];

  /** As last learned; the same array while they are the same. */
  get learned(): readonly LearnedCurator[] {
    return this.#learned;
  }

  /** Another stream begins. What was learned stays. */
  clear(): void {
    this.#members.clear();
    this.#hasChanged = true;
  }

  /** A node is shown so; undefined: it is gone. */
  note(id: NodeId, node: Node | undefined): void {
    if (node?.consensusMember === true) this.#members.set(id, node);
    else if (!this.#members.delete(id)) return;
    this.#hasChanged = true;
  }

  /**
   * Learns the Curators of all that were named. A simple Curator knows no roles: its picture names none, and says nothing
   * about those of before.
   */
  learn(clusterNets: readonly Prefix[]): readonly LearnedCurator[] {
    if (!this.#hasChanged) return this.#learned;
    this.#hasChanged = false;
    const next = learnedCurators(this.#members.values(), clusterNets);
    const isSame =
      next.length === this.#learned.length &&
      next.every(({ address, nodeId }, at) => {
        const before = this.#learned[at];
        return before?.address === address && before.nodeId === nodeId;
      });
    if (next.length > 0 && !isSame) this.#learned = next;
    return this.#learned;
  }
}

/** A Curator of the state file, if that is still one to dial. */
export function rememberedCurator(
  remembered: { readonly nodeId: string; readonly address: string },
  clusterNets: readonly Prefix[],
): LearnedCurator | undefined {
  const nodeId = asNodeId(remembered.nodeId);
  if (nodeId === undefined) return undefined;
  const { host, port } = partsOf(remembered.address);
  const address = outside(host, clusterNets);
  if (address === undefined || unusableReason(address) !== undefined) return undefined;
  if (!/^[1-9][0-9]{0,4}$/.test(port) || Number(port) > 65_535) return undefined;
  return { nodeId, address: renderEndpoint(address, Number(port)) };
}

/** Where the leader is reached; undefined when it has told no address that can be dialled. */
export function leaderAddress(
  { leaderHost, leaderPort }: LeaderAnswer,
  clusterNets: readonly Prefix[],
): string | undefined {
  const address = outside(leaderHost, clusterNets);
  if (address === undefined || leaderPort < 1 || leaderPort > 65_535) return undefined;
  return renderEndpoint(address, leaderPort);
}

/** Whether HOST:PORT is written as an address of this machine itself. */
export function isLoopbackCurator(address: string): boolean {
  const host = decodeAddress(partsOf(address).host);
  return (
    !("reason" in host) &&
    ["127.0.0.0/8", "::1/128"].some((network) => containsAddress(parsePrefix(network), host))
  );
}

function outside(host: string, clusterNets: readonly Prefix[]): Address | undefined {
  const address = decodeAddress(host);
  if ("reason" in address || address.text !== host) return undefined;
  return clusterNets.some((network) => containsAddress(network, address)) ? undefined : address;
}

/** HOST of HOST:PORT, without the brackets of an IPv6 address. */
export function curatorHost(address: string): string {
  return partsOf(address).host;
}

function partsOf(address: string): { readonly host: string; readonly port: string } {
  const colon = address.lastIndexOf(":");
  return { host: address.slice(0, colon).replace(/^\[(.*)\]$/, "$1"), port: address.slice(colon + 1) };
}
