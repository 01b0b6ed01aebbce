/** Which Curators that the cluster names are dialled. */
import { describe, expect, test } from "bun:test";
import {
  isLoopbackCurator,
  leaderAddress,
  learnedCurators,
  maxLearnedCurators,
  rememberedCurator,
} from "../../src/core/curators.ts";
import type { Node, NodeId } from "../../src/core/node.ts";
import { parsePrefix } from "../../src/core/prefix.ts";
import leader from "../fixtures/leader.json";

const clusterNets = [parsePrefix("10.192.0.0/11"), parsePrefix("fd10:c1::/32")];

function member(id: string, externalAddress: string, change: Partial<Node> = {}): Node {
  return {
    id: id as NodeId,
    state: "up",
    publicKey: "",
    externalAddress,
    prefixes: [],
    prefixCount: 0,
    consensusMember: true,
    curatorPort: 7835,
    ...change,
  };
}

describe("learnedCurators()", () => {
  test("takes those of consensus members, by node ID", () => {
    const nodes = [
      member("b", "2001:db8::b", { curatorPort: 7000 }),
      member("a", "192.0.2.1"),
      member("liar", "192.0.2.66", { consensusMember: false }),
    ];
    expect(learnedCurators(nodes, clusterNets)).toEqual([
      { nodeId: "a" as NodeId, address: "192.0.2.1:7835" },
      { nodeId: "b" as NodeId, address: "[2001:db8::b]:7000" },
    ]);
  });

  test.each([
    { name: "runs no Curator", node: member("a", "192.0.2.1", { consensusMember: true }), port: false },
    { name: "has reported no address", node: member("a", "") },
    { name: "names a host", node: member("a", "curator.example") },
    { name: "writes its address otherwise than it is written", node: member("a", "2001:DB8::1") },
    { name: "is inside ClusterNet", node: member("a", "10.192.1.1") },
    { name: "is inside the other ClusterNet", node: member("a", "fd10:c1::1") },
    { name: "names this very machine", node: member("a", "127.0.0.1") },
    { name: "names every machine", node: member("a", "0.0.0.0") },
    { name: "names a multicast address", node: member("a", "224.0.0.1") },
  ])("leaves out a member that $name", ({ node, port = true }) => {
    const { curatorPort, ...rest } = node;
    expect(learnedCurators([port ? { ...rest, curatorPort: curatorPort ?? 0 } : rest], clusterNets)).toEqual(
      [],
    );
  });

  test(`takes ${maxLearnedCurators} at most, the same ones in whatever order they come`, () => {
    const nodes = Array.from({ length: 100 }, (_, at) => member(`n${at + 100}`, `192.0.2.${at + 1}`));
    const learned = learnedCurators(nodes, clusterNets);
    expect(learned).toHaveLength(maxLearnedCurators);
    expect(learned[0]?.nodeId).toBe("n100" as NodeId);
    expect(learnedCurators(nodes.toReversed(), clusterNets)).toEqual(learned);
  });
});

test.each([
  { text: "192.0.2.1:7835", address: "192.0.2.1:7835" },
  { text: "[2001:db8::1]:1", address: "[2001:db8::1]:1" },
  { text: "10.192.0.1:7835", address: undefined },
  { text: "127.0.0.1:7835", address: undefined },
  { text: "curator.example:7835", address: undefined },
  { text: "192.0.2.1:0", address: undefined },
  { text: "192.0.2.1:65536", address: undefined },
  { text: "192.0.2.1:7835 ", address: undefined },
  { text: "192.0.2.1", address: undefined },
  { text: "192.0.2.1:7835", nodeId: "", address: undefined },
  { text: "192.0.2.1:7835", nodeId: "two words", address: undefined },
  { text: ":7835", address: undefined },
  { text: "", address: undefined },
])('rememberedCurator() of "$text" is $address, node ID "$nodeId"', ({ text, nodeId = "c1", address }) => {
  const want = address === undefined ? undefined : { nodeId: nodeId as NodeId, address };
  expect(rememberedCurator({ nodeId, address: text }, clusterNets)).toEqual(want);
});

test("leaderAddress() dials what the real Curator answered, and nothing when its leader has no address", () => {
  const answers = leader.get_current_leader.flatMap(({ name, responses }) =>
    responses.map(({ json }) => {
      const { leader_node_id, leader_port, this_node_id } = json;
      const leaderHost = "leader_host" in json ? json.leader_host : "";
      const answer = {
        leaderNodeId: leader_node_id,
        leaderHost: leaderHost ?? "",
        leaderPort: leader_port,
        thisNodeId: this_node_id,
      };
      return `${name}: ${leaderAddress(answer, clusterNets) ?? "none"}`;
    }),
  );
  expect(answers).toEqual([
    "leader asked: 127.0.0.1:7835",
    "follower asked: 127.0.0.1:7835",
    "leader asked with manager's certificate: 127.0.0.1:7835",
    "leader asked with self-signed certificate: 127.0.0.1:7835",
    "leader asked without certificate: 127.0.0.1:7835",
    "leader without status asked: none",
    "old leader asked after the change: 127.0.0.2:7835",
    "new leader asked after the change: 127.0.0.2:7835",
  ]);
});

test.each([
  { address: "127.0.0.1:7835", own: true },
  { address: "127.9.9.9:1", own: true },
  { address: "[::1]:7835", own: true },
  { address: "192.0.2.1:7835", own: false },
  { address: "localhost:7835", own: false },
])("isLoopbackCurator() of $address is $own", ({ address, own }) => {
  expect(isLoopbackCurator(address)).toBe(own);
});
