/** One node judged by itself: what is kept, what is left out, and what is said about it. */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { type ClaimRules, judgeNode, maxProblemsOfNode } from "../../src/core/claim.ts";
import { containsPrefix, hostPrefix, parsePrefix } from "../../src/core/prefix.ts";
import { keyOf, linesOf, nodeOf, ownKey, rules } from "./nodes.ts";

/** The whole outcome as text. */
function judged(fields: Parameters<typeof nodeOf>[0], by: ClaimRules = rules): object {
  const claim = judgeNode(nodeOf(fields), by);
  return {
    key: claim.publicKey !== undefined,
    address: claim.address?.text,
    prefixes: claim.prefixes.map(({ text }) => text),
    problems: linesOf(claim),
  };
}

const whole = { key: true, address: "192.0.2.2", prefixes: [], problems: [] };
const expectedIpv4 =
  "not an IPv4 address, expected four numbers from 0 to 255 without leading zeros, like 192.0.2.1";

describe("prefixes", () => {
  test("judgeNode() keeps the one good prefix and reports each other with its text (CASES 10)", () => {
    const prefixes = [
      "0.0.0.0/0",
      "10.0.0.0/8",
      "192.0.2.77/32",
      "10.192.5.1/24",
      "10.192.6.0/33",
      "",
      "10.192.2.0/24",
      "10.192.7.0/24\n[Peer]\u001b[2J",
    ];
    expect(judged({ id: "B", prefixes })).toEqual({
      ...whole,
      prefixes: ["10.192.2.0/24"],
      problems: [
        'prefix-too-wide B: Cannot use prefix "0.0.0.0/0" of node "B": it takes in all of ClusterNet 10.192.0.0/11',
        'prefix-too-wide B: Cannot use prefix "10.0.0.0/8" of node "B": it takes in all of ClusterNet 10.192.0.0/11',
        'prefix-outside B: Cannot use prefix "192.0.2.77/32" of node "B": it lies outside ClusterNet 10.192.0.0/11 and is not the node\'s external address',
        'prefix-malformed B: Cannot use prefix "10.192.5.1/24" of node "B": has bits set behind its prefix length, expected 10.192.5.0/24',
        'prefix-malformed B: Cannot use prefix "10.192.6.0/33" of node "B": prefix length is "33", expected 0 to 32',
        'prefix-malformed B: Cannot use prefix "" of node "B": has no prefix length, expected ADDRESS/LENGTH',
        'prefix-malformed B: Cannot use prefix "10.192.7.0/24\\u{a}[Peer]\\u{1b}[2J" of node "B": prefix length is "24\\u{a}[Peer]\\u{1b}[2J", expected 0 to 32',
      ],
    });
  });

  test.each([
    // A ClusterNet, and what of it is accepted: a sixteenth, or /24 and /64; never the whole.
    {
      net: "10.192.0.0/11",
      accepted: ["10.192.0.0/15", "10.194.0.0/16"],
      wide: ["10.192.0.0/11", "10.192.0.0/12", "10.192.0.0/14"],
    },
    { net: "10.0.0.0/22", accepted: ["10.0.0.0/24", "10.0.1.0/25"], wide: ["10.0.0.0/22", "10.0.0.0/23"] },
    { net: "10.0.0.0/24", accepted: ["10.0.0.0/25", "10.0.0.7/32"], wide: ["10.0.0.0/24", "10.0.0.0/23"] },
    { net: "10.0.0.0/26", accepted: ["10.0.0.0/27"], wide: ["10.0.0.0/26", "10.0.0.0/24"] },
    { net: "fd00::/48", accepted: ["fd00::/52", "fd00:0:0:1::/64"], wide: ["fd00::/48", "fd00::/51"] },
    { net: "fd00::/62", accepted: ["fd00::/64", "fd00::1/128"], wide: ["fd00::/62", "fd00::/63"] },
    { net: "fd00::/64", accepted: ["fd00::/65"], wide: ["fd00::/64", "::/0"] },
  ])("judgeNode() with ClusterNet $net accepts $accepted and not $wide", ({ net, accepted, wide }) => {
    const claim = judgeNode(nodeOf({ id: "B", prefixes: [...wide, ...accepted] }), {
      ...rules,
      clusterNets: [parsePrefix(net)],
    });
    expect(new Set(claim.prefixes.map(({ text }) => text))).toEqual(new Set(accepted));
    expect(claim.problems.map(({ kind }) => kind)).toEqual(wide.map(() => "prefix-too-wide"));
  });

  test("judgeNode() sorts, merges spellings and repeats, and keeps nested prefixes of one node", () => {
    const prefixes = [
      "fd00:c1:0:1::/64",
      "10.192.4.0/24",
      "192.0.2.2/32",
      "10.192.4.0/23",
      "FD00:00C1:0:1::/64",
      "10.192.4.0/24",
    ];
    expect(judged({ id: "B", prefixes })).toEqual({
      ...whole,
      prefixes: ["10.192.4.0/23", "10.192.4.0/24", "192.0.2.2/32", "fd00:c1:0:1::/64"],
    });
  });

  test("judgeNode() accepts an IPv6 external address as /128, in any spelling, and not as /32 (CASES 16)", () => {
    const prefixes = ["2001:db8::2/128", "2001:DB8:0::2/128", "2001:db8::/32"];
    expect(judged({ id: "B", externalAddress: "2001:db8::2", prefixes })).toEqual({
      key: true,
      address: "2001:db8::2",
      prefixes: ["2001:db8::2/128"],
      problems: [
        'prefix-outside B: Cannot use prefix "2001:db8::/32" of node "B": it lies outside ClusterNet fd00:c1::/48 and is not the node\'s external address',
      ],
    });
  });

  test("judgeNode() knows no prefix of a family without ClusterNet", () => {
    expect(
      judged({ id: "B", prefixes: ["fd00::/64"] }, { ...rules, clusterNets: rules.clusterNets.slice(0, 1) }),
    ).toEqual({
      ...whole,
      problems: ['prefix-outside B: Cannot use prefix "fd00::/64" of node "B": no ClusterNet is IPv6'],
    });
  });

  test("judgeNode() keeps 16 problems and counts the rest", () => {
    const prefixes = Array.from({ length: 1000 }, (_, index) => `10.192.0.0/${index + 33}`);
    const claim = judgeNode(nodeOf({ id: "B", prefixes: [...prefixes, "10.192.2.0/24"] }), rules);
    expect([claim.problems.length, claim.problemCount]).toEqual([maxProblemsOfNode, 1000]);
    expect(claim.prefixes.map(({ text }) => text)).toEqual(["10.192.2.0/24"]);
  });

  test("judgeNode() looks at 1,024 prefixes and says how many there are", () => {
    const prefixes = Array.from({ length: 1030 }, (_, index) => `10.200.${index >> 8}.${index & 255}/32`);
    const claim = judgeNode(nodeOf({ id: "B", prefixes, prefixCount: 5000 }), rules);
    expect(claim.prefixes.length).toBe(1024);
    expect(linesOf(claim)).toEqual([
      'prefix-malformed B: Cannot look at all prefixes of node "B": 5000 prefixes, expected at most 1024',
    ]);
  });
});

/** The line about an address that cannot be used. */
function invalid(text: string, reason: string): string {
  return `address-invalid B: Cannot use external address ${text} of node "B": ${reason}`;
}

describe("addresses", () => {
  test.each([
    ["nx.invalid", invalid('"nx.invalid"', expectedIpv4)],
    ["192.0.2.2\n", invalid('"192.0.2.2\\u{a}"', expectedIpv4)],
    [
      "192.0.2.2:51820",
      invalid(
        '"192.0.2.2:51820"',
        'not an IPv6 address: an IPv4 address that is malformed or not in place of the last two groups, expected eight groups of one to four hex digits, or fewer and one "::"',
      ),
    ],
    ["2001:DB8::2", invalid('"2001:DB8::2"', "not in canonical form, expected 2001:db8::2")],
    ["fe80::1%eth0", invalid('"fe80::1%eth0"', "has a zone, expected an address without one")],
    ["0.0.0.0", invalid('"0.0.0.0"', "it is the unspecified address")],
    ["127.0.0.9", invalid('"127.0.0.9"', "it is a loopback address")],
    ["::1", invalid('"::1"', "it is the loopback address")],
    ["169.254.1.1", invalid('"169.254.1.1"', "it is a link-local address")],
    ["fe80::1", invalid('"fe80::1"', "it is a link-local address")],
    ["224.0.0.1", invalid('"224.0.0.1"', "it is a multicast address")],
    ["255.255.255.255", invalid('"255.255.255.255"', "it is the broadcast address")],
    ["::ffff:192.0.2.2", invalid('"::ffff:192.0.2.2"', "it is an IPv4-mapped address")],
    // CASES 18: an endpoint inside the own route would send the tunnel into itself.
    [
      "10.192.9.9",
      invalid('"10.192.9.9"', "it lies inside ClusterNet 10.192.0.0/11, expected one outside the mesh"),
    ],
    [
      "fd00:c1::9",
      invalid('"fd00:c1::9"', "it lies inside ClusterNet fd00:c1::/48, expected one outside the mesh"),
    ],
    [
      "192.0.2.1",
      'address-own B: Cannot use external address "192.0.2.1" of node "B": it is an address of this host',
    ],
    ["", 'address-missing B: Cannot set an endpoint for node "B": it has reported no external address'],
  ])("judgeNode() makes a peer without endpoint of a node at %j", (externalAddress, problem) => {
    expect(judged({ id: "B", externalAddress, prefixes: ["10.192.2.0/24"] })).toEqual({
      key: true,
      address: undefined,
      prefixes: ["10.192.2.0/24"],
      problems: [problem],
    });
  });

  test("judgeNode() reports an unusable address once, not a second time as a prefix outside", () => {
    const prefixes = ["127.0.0.9/32", "10.192.2.0/24", "198.51.100.1/32"];
    expect(judged({ id: "B", externalAddress: "127.0.0.9", prefixes })).toEqual({
      key: true,
      address: undefined,
      prefixes: ["10.192.2.0/24"],
      problems: [
        `${invalid('"127.0.0.9"', "it is a loopback address")}; prefix "127.0.0.9/32" is left out with it`,
        'prefix-outside B: Cannot use prefix "198.51.100.1/32" of node "B": it lies outside ClusterNet 10.192.0.0/11 and is not the node\'s external address',
      ],
    });
  });
});

describe("keys", () => {
  test.each([
    ["AAAA", 'key-invalid B: Cannot use public key of node "B": 4 characters, expected 44 of base64'],
    ["", 'key-invalid B: Cannot use public key of node "B": 0 characters, expected 44 of base64'],
    [
      `${"A".repeat(43)}=`,
      'key-invalid B: Cannot use public key of node "B": all zero, which WireGuard takes as no key',
    ],
    [ownKey, `key-own B: Cannot use public key of node "B": it is this node's own key ${ownKey}`],
  ])("judgeNode() makes no peer of a node with key %j", (publicKey, problem) => {
    expect(judged({ id: "B", publicKey, prefixes: ["10.192.2.0/24"] })).toEqual({
      ...whole,
      key: false,
      prefixes: ["10.192.2.0/24"],
      problems: [problem],
    });
  });
});

test.each(["", "192.0.2.2", "nx.invalid"])(
  "a node at %j that announces neither key nor prefixes is no peer and no problem",
  (externalAddress) => {
    expect(judged({ id: "B", publicKey: "", externalAddress })).toEqual({
      key: false,
      address: undefined,
      prefixes: [],
      problems: [],
    });
  },
);

test.each(["invalid", "new", "standby", "up", "decommissioned", "unknown"] as const)(
  "a node's state filters nothing: %s",
  (state) => {
    expect(judged({ id: "B", state })).toEqual(whole);
  },
);

test("no text of a node breaks out of a message", () => {
  const hostile = fc.string({ unit: "binary", maxLength: 120 });
  fc.assert(
    fc.property(
      hostile,
      hostile,
      fc.array(hostile, { maxLength: 20 }),
      (publicKey, externalAddress, prefixes) => {
        const claim = judgeNode(nodeOf({ id: '[Peer]"\\', publicKey, externalAddress, prefixes }), rules);
        for (const { message } of claim.problems) expect(message).toMatch(/^[\x20-\x7e…]*$/);
        expect(claim.problems.length).toBe(Math.min(claim.problemCount, maxProblemsOfNode));
      },
    ),
  );
});

test("every accepted prefix lies inside ClusterNet or is the node's own address", () => {
  const text = fc.oneof(
    fc.tuple(fc.constantFrom("10.192.0.0", "10.200.4.0", "192.0.2.2", "192.0.2.3", "0.0.0.0"), fc.nat(34)),
    fc.tuple(fc.constantFrom("fd00:c1::", "fd00:c1:0:5::", "2001:db8::2", "::"), fc.nat(130)),
  );
  const prefixes = fc.array(
    text.map(([address, length]) => `${address}/${length}`),
    { maxLength: 30 },
  );
  const addresses = fc.constantFrom("192.0.2.2", "2001:db8::2", "10.192.0.0", "", "0.0.0.0");
  fc.assert(
    fc.property(prefixes, addresses, (prefixes, externalAddress) => {
      const claim = judgeNode(nodeOf({ id: "B", publicKey: keyOf(2), externalAddress, prefixes }), rules);
      for (const prefix of claim.prefixes) {
        const inside = rules.clusterNets.some(
          (network) => containsPrefix(network, prefix) && prefix.length >= network.length + 4,
        );
        const own = claim.address !== undefined && hostPrefix(claim.address).text === prefix.text;
        expect([prefix.text, inside || own]).toEqual([prefix.text, true]);
      }
    }),
  );
});

test("judgeNode() makes the same of a node whatever was made of it before", () => {
  const anyNode = fc
    .record({
      publicKey: fc.constantFrom(keyOf(1), keyOf(2), ownKey, "", "nonsense"),
      externalAddress: fc.constantFrom(
        "192.0.2.2",
        "192.0.2.3",
        "192.0.2.1",
        "2001:db8::2",
        "2001:DB8::2",
        "",
      ),
      prefixes: fc
        .subarray(["192.0.2.2/32", "10.192.2.0/24", "fd00:c1:0:2::/64", "FD00:C1:0:2::/64", "10.0.0.0/8"])
        .chain((texts) => fc.shuffledSubarray([...texts, ...texts], { minLength: texts.length })),
    })
    .map((fields) => nodeOf({ id: "b", ...fields }));
  fc.assert(
    fc.property(anyNode, anyNode, (before, node) => {
      const anew = judgeNode(node, rules);
      expect(judgeNode(node, rules, judgeNode(before, rules))).toEqual(anew);
      expect(judgeNode(node, rules, anew)).toEqual(anew);
    }),
    { numRuns: 500 },
  );
});
