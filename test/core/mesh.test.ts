/** All claims together: who is a peer, and who has which prefix. */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { judgeNode } from "../../src/core/claim.ts";
import { buildMesh, type Incumbents, incumbentsOf, noIncumbents } from "../../src/core/mesh.ts";
import type { Node } from "../../src/core/node.ts";
import { containsPrefix, hostPrefix, overlaps, parsePrefix, type Prefix } from "../../src/core/prefix.ts";
import { timed } from "../lab/usage.ts";
import { keyOf, linesOf, meshOf, nodeId, nodeOf, ownersOf, ownKey, rules } from "./nodes.ts";

/** A node with a key and address of its own, by its number. */
function peerNode(number: number, id: string, prefixes: readonly string[]): Node {
  return nodeOf({ id, publicKey: keyOf(number), externalAddress: `198.51.100.${number}`, prefixes });
}

function held(prefixes: Readonly<Record<string, string>>): Incumbents {
  return {
    keys: new Map(),
    prefixes: new Map(Object.entries(prefixes).map(([text, owner]) => [text, nodeId(owner)])),
  };
}

/** The node with the smallest ID, which claims what is others'. */
function greedy(prefixes: readonly string[]): Node {
  return peerNode(200, "0", prefixes);
}

/** The IPv4 prefix with its host bits cleared; written apart from the code under test. */
function masked(text: string): string {
  const [address = "", length = ""] = text.split("/");
  const bits = 32 - Number(length);
  const value = address.split(".").reduce((sum, octet) => sum * 256 + Number(octet), 0);
  const network = Math.floor(value / 2 ** bits) * 2 ** bits;
  if (address.includes(":")) return text;
  return `${[24, 16, 8, 0].map((shift) => Math.floor(network / 2 ** shift) % 256).join(".")}/${length}`;
}

/** C4.4: inside ClusterNet, or the node's own external address. */
function isAllowed(prefix: Prefix, ownHost: Prefix | undefined): boolean {
  return (
    prefix.text === ownHost?.text || rules.clusterNets.some((network) => containsPrefix(network, prefix))
  );
}

test("buildMesh() makes a peer of every node with a key, sorted by ID", () => {
  const built = meshOf([
    peerNode(2, "c", ["10.192.2.0/24", "198.51.100.2/32"]),
    nodeOf({ id: "b", publicKey: "" }),
    nodeOf({ id: "a", publicKey: keyOf(3), externalAddress: "2001:db8::3", prefixes: ["2001:db8::3/128"] }),
    nodeOf({ id: "d", publicKey: keyOf(4), externalAddress: "", prefixes: ["10.192.4.0/24"] }),
  ]);
  expect(
    built.mesh.peers.map(({ nodeId, publicKey, address }) => [nodeId, publicKey, address?.text]),
  ).toEqual([
    [nodeId("a"), keyOf(3), "2001:db8::3"],
    [nodeId("c"), keyOf(2), "198.51.100.2"],
    [nodeId("d"), keyOf(4), undefined],
  ]);
  expect(ownersOf(built)).toEqual({
    a: ["2001:db8::3/128"],
    c: ["10.192.2.0/24", "198.51.100.2/32"],
    d: ["10.192.4.0/24"],
  });
  expect(linesOf(built)).toEqual([
    'address-missing d: Cannot set an endpoint for node "d": it has reported no external address',
  ]);
});

describe("who gets a disputed prefix", () => {
  test.each([
    {
      name: "the smaller ID, when both meet one other",
      nodes: [peerNode(2, "c", ["10.192.4.0/24"]), peerNode(1, "b", ["10.192.4.0/24"])],
      owners: { b: ["10.192.4.0/24"], c: [] },
      problems: [
        'prefix-taken c: Cannot give prefix 10.192.4.0/24 to node "c": node "b" announces it too, and keeps it',
      ],
    },
    {
      name: "code units decide, not a locale",
      nodes: [peerNode(1, "a", ["10.192.4.0/24"]), peerNode(2, "B", ["10.192.4.0/24"])],
      owners: { B: ["10.192.4.0/24"], a: [] },
      problems: [
        'prefix-taken a: Cannot give prefix 10.192.4.0/24 to node "a": node "B" announces it too, and keeps it',
      ],
    },
    {
      name: "the loser loses only what overlaps",
      nodes: [
        peerNode(1, "b", ["10.192.4.128/25"]),
        peerNode(2, "c", ["10.192.4.0/24", "10.192.5.0/24", "198.51.100.2/32"]),
      ],
      owners: { b: ["10.192.4.128/25"], c: ["10.192.5.0/24", "198.51.100.2/32"] },
      problems: [
        'prefix-taken c: Cannot give prefix 10.192.4.0/24 to node "c": node "b" announces 10.192.4.128/25, which overlaps it, and keeps that',
      ],
    },
    {
      name: "a wider prefix with the smaller ID keeps out a narrower one",
      nodes: [peerNode(1, "b", ["10.192.4.0/23"]), peerNode(2, "c", ["10.192.5.7/32"])],
      owners: { b: ["10.192.4.0/23"], c: [] },
      problems: [
        'prefix-taken c: Cannot give prefix 10.192.5.7/32 to node "c": node "b" announces 10.192.4.0/23, which overlaps it, and keeps that',
      ],
    },
    {
      name: "fewest conflicts first, over all prefixes of a node",
      nodes: [
        peerNode(1, "a", ["10.192.1.0/24", "10.192.2.0/24"]),
        peerNode(2, "b", ["10.192.1.0/24"]),
        peerNode(3, "c", ["10.192.2.0/24"]),
      ],
      owners: { a: [], b: ["10.192.1.0/24"], c: ["10.192.2.0/24"] },
      problems: [
        'prefix-taken a: Cannot give prefix 10.192.1.0/24 to node "a": node "b" announces it too, and keeps it',
        'prefix-taken a: Cannot give prefix 10.192.2.0/24 to node "a": node "c" announces it too, and keeps it',
      ],
    },
    {
      name: "meeting one other node many times counts once",
      nodes: [
        peerNode(1, "a", ["10.192.1.0/24", "10.192.2.0/24", "10.192.3.0/24"]),
        peerNode(2, "b", ["10.192.1.0/24", "10.192.2.0/24", "10.192.3.0/24"]),
      ],
      owners: { a: ["10.192.1.0/24", "10.192.2.0/24", "10.192.3.0/24"], b: [] },
      problems: [
        'prefix-taken b: Cannot give prefix 10.192.1.0/24 to node "b": node "a" announces it too, and keeps it',
        'prefix-taken b: Cannot give prefix 10.192.2.0/24 to node "b": node "a" announces it too, and keeps it',
        'prefix-taken b: Cannot give prefix 10.192.3.0/24 to node "b": node "a" announces it too, and keeps it',
      ],
    },
    {
      name: "claims of a node without a usable key count, though it gets nothing",
      nodes: [
        peerNode(1, "a", ["10.192.1.0/24", "10.192.2.0/24"]),
        peerNode(2, "b", ["10.192.1.0/24"]),
        { ...peerNode(3, "c", ["10.192.2.0/24"]), publicKey: "AAAA" },
      ],
      owners: { a: ["10.192.2.0/24"], b: ["10.192.1.0/24"] },
      problems: [
        'prefix-taken a: Cannot give prefix 10.192.1.0/24 to node "a": node "b" announces it too, and keeps it',
        'key-invalid c: Cannot use public key of node "c": 4 characters, expected 44 of base64',
      ],
    },
    {
      name: "this node's own prefixes always win, and count for nobody's conflicts",
      own: ["10.192.1.0/24", "10.192.2.0/24"],
      nodes: [
        peerNode(1, "a", ["10.192.1.0/25", "10.192.2.0/24", "10.192.3.0/24"]),
        peerNode(2, "b", ["10.192.3.0/24"]),
      ],
      incumbents: held({ "10.192.2.0/24": "a" }),
      owners: { a: ["10.192.3.0/24"], b: [] },
      problems: [
        `prefix-taken a: Cannot give prefix 10.192.2.0/24 to node "a": it is a prefix of this node too, and this node's own come first; give one of the two another prefix`,
        `prefix-taken a: Cannot give prefix 10.192.1.0/25 to node "a": it overlaps 10.192.1.0/24 of this node, and this node's own come first; give one of the two another prefix`,
        'prefix-taken b: Cannot give prefix 10.192.3.0/24 to node "b": node "a" announces it too, and keeps it',
      ],
    },
    {
      name: "who held it before, whatever the IDs and conflicts",
      nodes: [
        peerNode(1, "a", ["10.192.4.0/24"]),
        peerNode(2, "z", ["10.192.4.0/23", "10.192.8.0/24"]),
        peerNode(3, "b", ["10.192.8.0/24"]),
      ],
      incumbents: held({ "10.192.4.0/23": "z" }),
      owners: { a: [], b: ["10.192.8.0/24"], z: ["10.192.4.0/23"] },
      problems: [
        'prefix-taken a: Cannot give prefix 10.192.4.0/24 to node "a": node "z" announces 10.192.4.0/23, which overlaps it, and keeps that',
        'prefix-taken z: Cannot give prefix 10.192.8.0/24 to node "z": node "b" announces it too, and keeps it',
      ],
    },
    {
      name: "who held it before loses it by another prefix, not by another length",
      nodes: [peerNode(1, "a", ["10.192.4.0/24"]), peerNode(2, "z", ["10.192.4.0/23"])],
      incumbents: held({ "10.192.4.0/24": "z" }),
      owners: { a: ["10.192.4.0/24"], z: [] },
      problems: [
        'prefix-taken z: Cannot give prefix 10.192.4.0/23 to node "z": node "a" announces 10.192.4.0/24, which overlaps it, and keeps that',
      ],
    },
    {
      name: "nested prefixes of one node do not dispute each other, and both must go for a third",
      nodes: [
        peerNode(1, "a", ["10.192.4.0/24"]),
        peerNode(2, "b", ["10.192.4.0/23", "10.192.4.0/22", "10.192.6.0/24"]),
      ],
      owners: { a: ["10.192.4.0/24"], b: ["10.192.6.0/24"] },
      problems: [
        'prefix-taken b: Cannot give prefix 10.192.4.0/22 to node "b": node "a" announces 10.192.4.0/24, which overlaps it, and keeps that',
        'prefix-taken b: Cannot give prefix 10.192.4.0/23 to node "b": node "a" announces 10.192.4.0/24, which overlaps it, and keeps that',
      ],
    },
    {
      name: "an external address is a prefix like any other",
      nodes: [
        nodeOf({ id: "b", publicKey: keyOf(1), prefixes: ["192.0.2.2/32"] }),
        nodeOf({ id: "c", publicKey: keyOf(2), prefixes: ["192.0.2.2/32"] }),
      ],
      owners: { b: ["192.0.2.2/32"], c: [] },
      problems: [
        'prefix-taken c: Cannot give prefix 192.0.2.2/32 to node "c": node "b" announces it too, and keeps it',
      ],
    },
  ])("buildMesh(): $name", ({ nodes, own = [], incumbents = noIncumbents, owners, problems }) => {
    const built = meshOf(nodes, { own, incumbents });
    expect(ownersOf(built)).toEqual(owners);
    expect(linesOf(built)).toEqual(problems);
    // Whatever the order in which they came.
    expect(meshOf(nodes.toReversed(), { own, incumbents })).toEqual(built);
  });
});

describe("two nodes with one key", () => {
  const b = nodeOf({
    id: "b",
    publicKey: keyOf(1),
    externalAddress: "198.51.100.1",
    prefixes: ["10.192.1.0/24"],
  });
  const c = nodeOf({
    id: "c",
    publicKey: keyOf(1),
    externalAddress: "198.51.100.2",
    prefixes: ["10.192.2.0/24"],
  });
  const d = nodeOf({
    id: "d",
    publicKey: keyOf(3),
    externalAddress: "198.51.100.3",
    prefixes: ["10.192.2.0/24"],
  });

  test("buildMesh() makes one of them a peer, and gives it nothing of the other (CASES 8)", () => {
    const built = meshOf([c, b]);
    expect(ownersOf(built)).toEqual({ b: ["10.192.1.0/24"] });
    expect(built.mesh.peers[0]?.address?.text).toBe("198.51.100.1");
    expect(linesOf(built)).toEqual([
      `key-taken c: Cannot make node "c" a peer: its public key ${keyOf(1)} belongs to node "b"`,
    ]);
  });

  test("buildMesh() keeps the one that had it, whatever the IDs (CASES 8)", () => {
    const incumbents = incumbentsOf(meshOf([c]).mesh);
    const built = meshOf([b, c], { incumbents });
    expect(ownersOf(built)).toEqual({ c: ["10.192.2.0/24"] });
    expect(linesOf(built)).toEqual([
      `key-taken b: Cannot make node "b" a peer: its public key ${keyOf(1)} belongs to node "c"`,
    ]);
  });

  test("buildMesh() leaves the loser's prefixes to others", () => {
    expect(ownersOf(meshOf([b, c, d]))).toEqual({ b: ["10.192.1.0/24"], d: ["10.192.2.0/24"] });
  });

  test("buildMesh() gives the key to the other when the winner goes", () => {
    const incumbents = incumbentsOf(meshOf([b, c]).mesh);
    expect(meshOf([c], { incumbents })).toEqual(meshOf([c]));
  });

  test("a node with this node's own key is no peer, and its prefixes are left to others", () => {
    const built = meshOf([nodeOf({ id: "a", publicKey: ownKey, prefixes: ["10.192.2.0/24"] }), d]);
    expect(ownersOf(built)).toEqual({ d: ["10.192.2.0/24"] });
    expect(linesOf(built)).toEqual([
      `key-own a: Cannot use public key of node "a": it is this node's own key ${ownKey}`,
    ]);
  });
});

describe("a node that claims what fifty others have (CASES 11)", () => {
  const others = Array.from({ length: 50 }, (_, index) =>
    peerNode(index + 1, `n${String(index).padStart(2, "0")}`, [`10.193.${index}.0/24`]),
  );
  const all = Object.fromEntries(others.map(({ id, prefixes }) => [id, prefixes]));

  test("one wide prefix: all fifty are programmed and it is reported", () => {
    const built = meshOf([greedy(["10.193.0.0/16"]), ...others]);
    expect(ownersOf(built)).toEqual({ "0": [], ...all });
    expect(linesOf(built)).toEqual([
      'prefix-taken 0: Cannot give prefix 10.193.0.0/16 to node "0": node "n00" announces 10.193.0.0/24, which overlaps it, and keeps that',
    ]);
  });

  test("fifty single addresses: all fifty are programmed, 16 problems are kept and the rest is counted", () => {
    const built = meshOf([greedy(others.map((_, index) => `10.193.${index}.7/32`)), ...others]);
    expect(ownersOf(built)).toEqual({ "0": [], ...all });
    const lines = linesOf(built);
    expect(lines.length).toBe(16);
    expect(lines[0]).toBe(
      'prefix-taken 0: Cannot give prefix 10.193.0.7/32 to node "0": node "n00" announces 10.193.0.0/24, which overlaps it, and keeps that',
    );
    expect(lines[15]).toBe(
      'prefix-taken 0: Cannot give prefix 10.193.15.7/32 to node "0": node "n15" announces 10.193.15.0/24, which overlaps it, and keeps that (and 34 more problems of this node)',
    );
  });

  test("the backlog cut after it: the greedy node is no incumbent yet, so the end of the backlog decides", () => {
    const first = meshOf([greedy(["10.193.0.0/16"])]);
    expect(ownersOf(first)).toEqual({ "0": ["10.193.0.0/16"] });
    // All that a backlog brings is decided again at its end: the caller gives the incumbents of before.
    expect(ownersOf(meshOf([greedy(["10.193.0.0/16"]), ...others], { incumbents: noIncumbents }))).toEqual({
      "0": [],
      ...all,
    });
  });

  test("the whole ClusterNet and half of it are never accepted", () => {
    const built = meshOf([greedy(["10.192.0.0/11", "10.192.0.0/12"]), ...others]);
    expect(ownersOf(built)).toEqual({ "0": [], ...all });
    expect(built.problems.map(({ kind }) => kind)).toEqual(["prefix-too-wide", "prefix-too-wide"]);
  });
});

test("a prefix is given back when its owner gives it up (C4.5)", () => {
  const b = peerNode(1, "b", ["10.192.4.0/24"]);
  const c = peerNode(2, "c", ["10.192.4.0/24"]);
  const incumbents = incumbentsOf(meshOf([b, c]).mesh);
  expect(ownersOf(meshOf([{ ...b, prefixes: [], prefixCount: 0 }, c], { incumbents }))).toEqual({
    b: [],
    c: ["10.192.4.0/24"],
  });
  // And the former owner does not get it back by claiming it again.
  const later = incumbentsOf(meshOf([{ ...b, prefixes: [], prefixCount: 0 }, c], { incumbents }).mesh);
  expect(ownersOf(meshOf([b, c], { incumbents: later }))).toEqual({ b: [], c: ["10.192.4.0/24"] });
});

test("two nodes that announce one prefix again and again: one owner, one problem (CASES 12)", () => {
  const nodes = [peerNode(1, "b", ["10.192.4.0/24"]), peerNode(2, "c", ["10.192.4.0/24"])];
  const first = meshOf(nodes);
  let incumbents = incumbentsOf(first.mesh);
  for (let event = 0; event < 200; event++) {
    const built = meshOf(event % 3 === 0 ? nodes : nodes.toReversed(), { incumbents });
    expect(built).toEqual(first);
    incumbents = incumbentsOf(built.mesh);
  }
});

test("four damaged nodes among a hundred cost those four only (CASES 14)", () => {
  const nodes = Array.from({ length: 100 }, (_, index) =>
    peerNode(index + 1, `n${String(index).padStart(2, "0")}`, [
      `10.192.${index}.0/24`,
      `198.51.100.${index + 1}/32`,
    ]),
  ).map((node, index): Node => {
    switch (index) {
      case 10:
        return { ...node, publicKey: "AAAA" };
      case 20:
        return { ...node, externalAddress: "nx.invalid" };
      case 30:
        return { ...node, prefixes: ["10.192.30.0/33", "198.51.100.31/32"] };
      case 40:
        return { ...node, externalAddress: "" };
      case 50:
        return { ...node, publicKey: "", prefixes: [], prefixCount: 0 };
      default:
        return node;
    }
  });
  const built = meshOf(nodes);
  const whole = built.mesh.peers.filter(
    ({ address, prefixes }) => address !== undefined && prefixes.length === 2,
  );
  expect([built.mesh.peers.length, whole.length]).toEqual([98, 95]);
  expect(built.mesh.peers.find(({ nodeId }) => nodeId === "n20")?.address).toBeUndefined();
  expect(built.problems.map(({ kind, nodeId }) => `${kind} ${nodeId}`)).toEqual([
    "key-invalid n10",
    "address-invalid n20",
    "prefix-malformed n30",
    "address-missing n40",
  ]);
});

describe("properties", () => {
  // Few addresses, keys and lengths, so that nearly everything is in dispute.
  const prefixText = fc
    .tuple(fc.constantFrom(15, 16, 22, 23, 24, 25, 32), fc.nat(3), fc.nat(3))
    .map(([length, third, fourth]) => `10.192.${third}.${fourth * 64}/${length}`);
  const nodes = fc
    .uniqueArray(
      fc.record({
        id: fc.constantFrom(..."abcdefghij".split("")),
        key: fc.nat(9),
        address: fc.constantFrom("198.51.100.1", "198.51.100.2", "2001:db8::7", "", "10.192.0.1"),
        prefixes: fc.array(
          fc.oneof(prefixText, fc.constantFrom("198.51.100.1/32", "198.51.100.2/32", "fd00:c1:0:1::/64")),
          { maxLength: 6 },
        ),
      }),
      { selector: ({ id }) => id, minLength: 1, maxLength: 10 },
    )
    .map((list) =>
      list.map(({ id, key, address, prefixes }) =>
        nodeOf({
          id,
          publicKey: key === 0 ? "bad" : keyOf(key),
          externalAddress: address,
          prefixes: prefixes.map(masked),
        }),
      ),
    );
  const own = fc.array(prefixText.map(masked), { maxLength: 2 });

  test("the order in which nodes come decides nothing", () => {
    fc.assert(
      fc.property(nodes, own, nodes, fc.infiniteStream(fc.nat()), (list, own, before, numbers) => {
        const incumbents = incumbentsOf(meshOf(before).mesh);
        const shuffled = list
          .map((node) => ({ node, at: numbers.next().value }))
          .toSorted((a, b) => a.at - b.at)
          .map(({ node }) => node);
        expect(meshOf(shuffled, { own, incumbents })).toEqual(meshOf(list, { own, incumbents }));
      }),
    );
  });

  test("no address has two owners, and nobody gets what was not claimed", () => {
    fc.assert(
      fc.property(nodes, own, nodes, (list, own, before) => {
        const { mesh } = meshOf(list, { own, incumbents: incumbentsOf(meshOf(before).mesh) });
        const keys = mesh.peers.map(({ publicKey }) => publicKey);
        expect(new Set(keys).size).toBe(keys.length);
        for (const [index, peer] of mesh.peers.entries()) {
          const node = list.find(({ id }) => id === peer.nodeId);
          const others = mesh.peers.slice(index + 1).flatMap(({ prefixes }) => prefixes);
          for (const prefix of peer.prefixes) {
            expect(node?.prefixes).toContain(prefix.text);
            expect(isAllowed(prefix, peer.address === undefined ? undefined : hostPrefix(peer.address))).toBe(
              true,
            );
            expect([...others, ...own.map(parsePrefix)].filter((other) => overlaps(prefix, other))).toEqual(
              [],
            );
          }
        }
      }),
    );
  });

  test("each prefix is kept or a problem, and no free prefix is withheld", () => {
    fc.assert(
      fc.property(nodes, own, (list, own) => {
        const built = meshOf(list, { own });
        const given = [...own.map(parsePrefix), ...built.mesh.peers.flatMap(({ prefixes }) => prefixes)];
        for (const node of list) {
          const peer = built.mesh.peers.find(({ nodeId }) => nodeId === node.id);
          if (peer === undefined) continue;
          const claim = judgeNode(node, rules);
          const lost = claim.prefixes.filter(
            (prefix) =>
              !peer.prefixes.includes(prefix) && !peer.prefixes.some(({ text }) => text === prefix.text),
          );
          const taken = built.problems.filter(
            ({ kind, nodeId }) => kind === "prefix-taken" && nodeId === node.id,
          );
          expect(taken.length).toBe(lost.length);
          for (const prefix of lost) expect(given.some((other) => overlaps(prefix, other))).toBe(true);
        }
      }),
    );
  });

  test("the node goes first that meets the fewest others: as counted pair by pair", () => {
    fc.assert(
      fc.property(nodes, (list) => {
        const claims = list.map((node) => judgeNode(node, rules));
        const degree = (index: number): number =>
          claims.filter(
            (other, at) =>
              at !== index &&
              ((other.publicKey !== undefined && other.publicKey === claims[index]?.publicKey) ||
                other.prefixes.some((one) => claims[index]?.prefixes.some((two) => overlaps(one, two)))),
          ).length;
        const order = claims
          .map((claim, index) => ({ claim, others: degree(index) }))
          .toSorted((a, b) => a.others - b.others || (a.claim.nodeId < b.claim.nodeId ? -1 : 1));
        // The rule word by word, without any cleverness.
        const owners: Record<string, readonly string[]> = {};
        const given: { readonly prefix: Prefix; readonly id: string }[] = [];
        const keys = new Set<string>();
        for (const { claim } of order) {
          if (claim.publicKey === undefined || keys.has(claim.publicKey)) continue;
          keys.add(claim.publicKey);
          const kept = claim.prefixes.filter(
            (prefix) => !given.some((other) => other.id !== claim.nodeId && overlaps(prefix, other.prefix)),
          );
          given.push(...kept.map((prefix) => ({ prefix, id: claim.nodeId })));
          owners[claim.nodeId] = kept.map(({ text }) => text);
        }
        expect(ownersOf(buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents }))).toEqual(owners);
      }),
      { numRuns: 500 },
    );
  });

  test("whoever has something keeps it while it goes on claiming, whoever else comes and goes", () => {
    fc.assert(
      fc.property(fc.array(nodes, { minLength: 2, maxLength: 6 }), (pictures) => {
        let incumbents = noIncumbents;
        for (const list of pictures) {
          const built = meshOf(list, { incumbents });
          const owners = ownersOf(built);
          for (const [text, owner] of incumbents.prefixes) {
            const node = list.find(({ id }) => id === owner);
            const key = built.mesh.peers.find(({ nodeId }) => nodeId === owner);
            if (node === undefined || key === undefined) continue;
            const claims = judgeNode(node, rules).prefixes.some((prefix) => prefix.text === text);
            if (claims) expect(owners[owner]).toContain(text);
          }
          incumbents = incumbentsOf(built.mesh);
          expect(meshOf(list, { incumbents }).mesh).toEqual(built.mesh);
        }
      }),
    );
  });
});

describe("at the limit of 10,000 nodes with 64 prefixes", () => {
  const count = 10_000;
  const claimsOf = (prefixesOf: (node: number) => readonly string[]) =>
    Array.from({ length: count }, (_, index) => ({
      nodeId: nodeId(`n${index}`),
      publicKey: keyOf(index),
      prefixes: prefixesOf(index).map(parsePrefix),
      problems: [],
      problemCount: 0,
    }));

  // The limits are generous: what is quadratic takes minutes.
  test("buildMesh() takes a picture without disputes", () => {
    const claims = claimsOf((node) =>
      Array.from({ length: 64 }, (_, index) => {
        const at = node * 64 + index;
        return `10.${192 + (at >> 16)}.${(at >> 8) & 255}.${at & 255}/32`;
      }),
    );
    const { result, processorMs } = timed(() =>
      buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents }),
    );
    const { mesh, problems } = result;
    expect(processorMs).toBeLessThan(5_000);
    expect([mesh.peers.length, problems.length]).toEqual([count, 0]);
  }, 60_000);

  test("buildMesh() takes a picture in which all claim the same", () => {
    const same = Array.from({ length: 64 }, (_, index) => `10.193.${index}.0/24`);
    const claims = claimsOf(() => same);
    const { result: built, processorMs } = timed(() =>
      buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents }),
    );
    expect(processorMs).toBeLessThan(15_000);
    expect(
      built.mesh.peers.filter(({ prefixes }) => prefixes.length > 0).map(({ nodeId }) => nodeId),
    ).toEqual([nodeId("n0")]);
    expect(built.problems.length).toBe(16 * (count - 1));
  }, 60_000);
});
