/**
 * Wanted hosts for tests: keys, peers and meshes that are the same at every run.
 */
import type { WantedHost } from "../../src/core/host-plan.ts";
import { parsePublicKey, privateKeyFromBytes, type PrivateKey, type PublicKey } from "../../src/core/key.ts";
import type { Peer } from "../../src/core/mesh.ts";
import { asNodeId, type NodeId } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";

/** A private key that depends on the number alone. */
export function privateKeyOf(number: number): PrivateKey {
  const bytes = new Uint8Array(32).fill(7);
  new DataView(bytes.buffer).setUint32(4, number);
  return privateKeyFromBytes(bytes);
}

/** The public key of `privateKeyOf(number)`; from 100 on any 32 bytes, since a mesh of thousands must be made quickly. */
export function publicKeyOf(number: number): PublicKey {
  if (number < 100) return privateKeyOf(number).publicKey;
  const bytes = new Uint8Array(32).fill(3);
  new DataView(bytes.buffer).setUint32(4, number);
  return parsePublicKey(bytes.toBase64());
}

export function nodeIdOf(text: string): NodeId {
  const id = asNodeId(text);
  if (id === undefined) throw new Error(`not a node ID: ${text}`);
  return id;
}

/** A peer of node `n<number>`; by default at 192.0.2.<number> with 10.192.<number>.0/24. */
export function peerOf(
  number: number,
  { key = number, address = `192.0.2.${number}`, prefixes = [`10.192.${number}.0/24`] } = {},
): Peer {
  return {
    nodeId: nodeIdOf(`n${number}`),
    publicKey: publicKeyOf(key),
    ...(address === "" ? {} : { address: parseAddress(address) }),
    prefixes: prefixes.map(parsePrefix),
  };
}

/** Number of this node's own key. */
export const ownKey = 1;

/** Both families, this node's first addresses 10.192.1.1 and fd00:1::1, no peers. */
export function wantedHost(change: Partial<WantedHost> = {}): WantedHost {
  return {
    interfaceName: "clusternet",
    publicKey: publicKeyOf(ownKey),
    listenPort: 7838,
    mtu: 1420,
    clusterNets: [parsePrefix("10.192.0.0/11"), parsePrefix("fd00::/16")],
    peers: [],
    loopbackAddresses: [parseAddress("10.192.1.1"), parseAddress("fd00:1::1")],
    exact: true,
    ...change,
  };
}
