/** Nodes, keys and rules for the tests of the mesh: everything valid unless a test says otherwise. */
import type { ClaimRules } from "../../src/core/claim.ts";
import { judgeNode } from "../../src/core/claim.ts";
import { parsePublicKey, type PublicKey } from "../../src/core/key.ts";
import { type BuiltMesh, buildMesh, type Incumbents, noIncumbents } from "../../src/core/mesh.ts";
import { asNodeId, type Node, type NodeId } from "../../src/core/node.ts";
import { parsePrefix } from "../../src/core/prefix.ts";

export function nodeId(text: string): NodeId {
  const id = asNodeId(text);
  if (id === undefined) throw new Error(`not a node ID: ${text}`);
  return id;
}

/** A public key for each number. */
export function keyOf(number: number): PublicKey {
  const bytes = new Uint8Array(32).fill(9);
  new DataView(bytes.buffer).setUint32(0, number);
  return parsePublicKey(bytes.toBase64());
}

/** `fields` may leave out everything but the ID; the number of prefixes follows from the prefixes. */
export function nodeOf(fields: Partial<Omit<Node, "id">> & { readonly id: string }): Node {
  const prefixes = fields.prefixes ?? [];
  return {
    state: "up",
    publicKey: keyOf(1),
    externalAddress: "192.0.2.2",
    prefixCount: prefixes.length,
    consensusMember: false,
    ...fields,
    prefixes,
    id: nodeId(fields.id),
  };
}

export const ownKey = keyOf(0xffff_ffff);

export const rules: ClaimRules = {
  clusterNets: [parsePrefix("10.192.0.0/11"), parsePrefix("fd00:c1::/48")],
  ownPublicKey: ownKey,
  hostAddresses: new Set(["192.0.2.1", "2001:db8::1"]),
};

/** The mesh of these nodes, as an agent with the own prefixes makes it. */
export function meshOf(
  nodes: readonly Node[],
  {
    own = [],
    incumbents = noIncumbents,
  }: { readonly own?: readonly string[]; readonly incumbents?: Incumbents } = {},
): BuiltMesh {
  return buildMesh({
    claims: nodes.map((node) => judgeNode(node, rules)),
    ownPrefixes: own.map(parsePrefix),
    incumbents,
  });
}

/** Who has which prefixes, as text: what most tests are about. */
export function ownersOf({ mesh }: BuiltMesh): Readonly<Record<string, readonly string[]>> {
  return Object.fromEntries(mesh.peers.map((peer) => [peer.nodeId, peer.prefixes.map(({ text }) => text)]));
}

/** Problems as "kind node: message". */
export function linesOf({ problems }: Pick<BuiltMesh, "problems">): readonly string[] {
  return problems.map(({ kind, nodeId, message }) => `${kind} ${nodeId}: ${message}`);
}
