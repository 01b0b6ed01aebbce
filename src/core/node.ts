/**
 * A node as a Curator describes it: text that is not believed yet.
 *
 * curator/wire.ts makes it from the wire, core/wg-config-reader.ts from the last file; core/claim.ts judges it, without
 * parsing again what core/wg-config-reader.ts has parsed.
 * The status' time is left out on purpose: it changes with every report and means nothing to the mesh, so
 * two equal nodes are one and the same to us.
 */
import type { PublicKey } from "./key.ts";
import { type Address, fewPrefixes, type Prefix } from "./prefix.ts";
import { quote } from "./problem.ts";

declare const nodeIdBrand: unique symbol;
/** 1 to 253 printable ASCII characters without spaces (C4.7). */
export type NodeId = string & { readonly [nodeIdBrand]: true };

/** As the protocol's NodeState without its prefix; unknown numbers become "unknown". Shown only: it filters nothing. */
export type NodeState = "invalid" | "new" | "standby" | "up" | "decommissioned" | "unknown";

export interface Node {
  readonly id: NodeId;
  readonly state: NodeState;
  /** Base64 as received; "" when the node announces no key. */
  readonly publicKey: string;
  /** As received; "" when the node has reported no address. */
  readonly externalAddress: string;
  /** CIDR texts as received: at most the first 1,024 (C4.4). */
  readonly prefixes: readonly string[];
  /** How many prefixes the node announces, those beyond the first 1,024 too. */
  readonly prefixCount: number;
  /** The node's roles name a consensus member (written by the cluster, not by the node). */
  readonly consensusMember: boolean;
  /** TCP port of a Curator that the node says it runs. */
  readonly curatorPort?: number;
  /** Of a node of the last file, whose texts were parsed when it was read, what these very texts say. */
  readonly parsed?: ParsedTexts;
}

/** What the texts of a node say. */
export interface ParsedTexts {
  readonly publicKey: PublicKey;
  /** Absent: the text is "". */
  readonly address: Address | undefined;
  /** One for each text, in their order. */
  readonly prefixes: readonly Prefix[];
}

/** Of one node this many prefixes are looked at (C4.4). */
export const maxPrefixesOfNode = 1024;

/** The node ID, or undefined when the text is none. */
export function asNodeId(text: string): NodeId | undefined {
  return /^[\x21-\x7e]{1,253}$/.test(text) ? (text as NodeId) : undefined;
}

/** What to say of a text that is no node ID. */
export function nodeIdProblem(text: string): string {
  return `Cannot use node with ID ${quote(text)}: expected 1 to 253 printable ASCII characters without spaces`;
}

/** True when nothing differs that we look at; the order of prefixes counts. */
export function sameNode(a: Node, b: Node): boolean {
  return (
    a === b ||
    (a.id === b.id &&
      a.state === b.state &&
      a.publicKey === b.publicKey &&
      a.externalAddress === b.externalAddress &&
      a.prefixCount === b.prefixCount &&
      a.consensusMember === b.consensusMember &&
      a.curatorPort === b.curatorPort &&
      a.prefixes.length === b.prefixes.length &&
      a.prefixes.every((prefix, index) => prefix === b.prefixes[index]))
  );
}

/** The node, made of the texts of the known one where they say the same: of two equal texts one is enough in memory. */
export function withTextsOf(known: Node, node: Node): Node {
  return {
    ...node,
    id: known.id,
    publicKey: node.publicKey === known.publicKey ? known.publicKey : node.publicKey,
    externalAddress:
      node.externalAddress === known.externalAddress ? known.externalAddress : node.externalAddress,
    prefixes:
      node.prefixes.length > fewPrefixes || known.prefixes.length > fewPrefixes
        ? node.prefixes
        : node.prefixes.map((text) => known.prefixes[known.prefixes.indexOf(text)] ?? text),
  };
}
