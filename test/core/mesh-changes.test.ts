import { expect, test } from "bun:test";
import { privateKeyFromBytes } from "../../src/core/key.ts";
import type { Peer } from "../../src/core/mesh.ts";
import { diffMeshes } from "../../src/core/mesh-changes.ts";
import { asNodeId } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";

function peer(name: string, address: string | undefined, ...prefixes: readonly string[]): Peer {
  return {
    nodeId: asNodeId(name) ?? expect.unreachable(),
    publicKey: privateKeyFromBytes(new Uint8Array(32).fill(name.charCodeAt(0))).publicKey,
    prefixes: prefixes.map(parsePrefix),
    ...(address === undefined ? {} : { address: parseAddress(address) }),
  };
}

const b = peer("b", "192.0.2.2", "10.192.2.0/24");
const c = peer("c", "192.0.2.3", "10.192.3.0/24");
const cases: readonly {
  name: string;
  before: readonly Peer[];
  after: readonly Peer[];
  want: readonly string[];
}[] = [
  { name: "nothing", before: [b, c], after: [b, { ...c }], want: [] },
  { name: "a peer that came", before: [c], after: [b, c], want: ["added b"] },
  { name: "a peer that went", before: [b, c], after: [c], want: ["removed b"] },
  {
    name: "another address",
    before: [b],
    after: [peer("b", "192.0.2.9", "10.192.2.0/24")],
    want: ["changed b"],
  },
  {
    name: "no address any more",
    before: [b],
    after: [peer("b", undefined, "10.192.2.0/24")],
    want: ["changed b"],
  },
  {
    name: "another prefix",
    before: [b],
    after: [peer("b", "192.0.2.2", "10.192.4.0/24")],
    want: ["changed b"],
  },
  {
    name: "one prefix more",
    before: [b],
    after: [{ ...b, prefixes: [...b.prefixes, ...c.prefixes] }],
    want: ["changed b"],
  },
  { name: "another key", before: [b], after: [{ ...b, publicKey: c.publicKey }], want: ["changed b"] },
  { name: "all at once, by node ID", before: [c], after: [b], want: ["added b", "removed c"] },
];

test.each(cases)("diffMeshes() finds $name", ({ before, after, want }) => {
  const found = diffMeshes({ peers: before }, { peers: after });
  expect(found.map(({ kind, peer }) => `${kind} ${peer.nodeId}`)).toEqual([...want]);
});
