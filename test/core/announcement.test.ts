/** What this node announces of itself, what becomes a loopback address, and whether the picture shows it. */
import { describe, expect, test } from "bun:test";
import { isAnnounced, planAnnouncement } from "../../src/core/announcement.ts";
import { parseAddress, parseInterfacePrefix, parsePrefix } from "../../src/core/prefix.ts";
import { keyOf, linesOf, nodeId, nodeOf, rules } from "./nodes.ts";

function planned(
  externalAddress: string | undefined,
  podPrefixes: readonly string[],
  nets = rules.clusterNets,
): object {
  const own = planAnnouncement({
    self: nodeId("a"),
    publicKey: keyOf(1),
    ...(externalAddress !== undefined && { externalAddress: parseAddress(externalAddress) }),
    podPrefixes: podPrefixes.map(parseInterfacePrefix),
    clusterNets: nets,
  });
  expect(own.announcement.publicKey).toBe(keyOf(1));
  return {
    prefixes: own.announcement.prefixes.map(({ text }) => text),
    loopback: own.loopbackAddresses.map(({ text }) => text),
    problems: linesOf(own),
  };
}

describe("planAnnouncement()", () => {
  test.each([
    {
      name: "the external address first, then the pod prefixes as given",
      address: "192.0.2.1",
      pods: ["10.200.9.0/24", "10.192.1.0/24", "fd00:c1:0:1::/64"],
      want: {
        prefixes: ["192.0.2.1/32", "10.200.9.0/24", "10.192.1.0/24", "fd00:c1:0:1::/64"],
        loopback: ["10.200.9.1", "10.192.1.1", "fd00:c1:0:1::1"],
        problems: [],
      },
    },
    {
      name: "an IPv6 external address as /128, not /32 (CASES 16)",
      address: "2001:DB8::1",
      pods: [],
      want: { prefixes: ["2001:db8::1/128"], loopback: [], problems: [] },
    },
    {
      name: "no external address: the pod prefixes alone",
      address: undefined,
      pods: ["10.192.1.0/24"],
      want: { prefixes: ["10.192.1.0/24"], loopback: ["10.192.1.1"], problems: [] },
    },
    {
      name: "duplicates merged, also in other spellings, and one loopback address each",
      address: "192.0.2.1",
      pods: ["fd00:c1:0:1::/64", "10.192.4.0/23", "10.192.4.0/24", "FD00:C1:0:1:0:0:0:0/64", "192.0.2.1/32"],
      want: {
        prefixes: ["192.0.2.1/32", "fd00:c1:0:1::/64", "10.192.4.0/23", "10.192.4.0/24"],
        loopback: ["fd00:c1:0:1::1", "10.192.4.1"],
        problems: [],
      },
    },
    {
      name: "of a prefix of one address that address, not its neighbour",
      address: "192.0.2.1",
      pods: ["10.192.1.7/32", "10.192.1.8/31", "fd00:c1::7/128"],
      want: {
        prefixes: ["192.0.2.1/32", "10.192.1.7/32", "10.192.1.8/31", "fd00:c1::7/128"],
        loopback: ["10.192.1.7", "10.192.1.9", "fd00:c1::7"],
        problems: [],
      },
    },
    {
      name: "prefixes outside ClusterNet are reported once and harm no other",
      address: "192.0.2.1",
      pods: ["10.191.0.0/24", "10.192.1.0/24", "10.191.0.0/24", "fd00:c2::/64"],
      want: {
        prefixes: ["192.0.2.1/32", "10.192.1.0/24"],
        loopback: ["10.192.1.1"],
        problems: [
          'prefix-outside a: Cannot announce pod prefix 10.191.0.0/24 of node "a": it lies outside ClusterNet 10.192.0.0/11',
          'prefix-outside a: Cannot announce pod prefix fd00:c2::/64 of node "a": it lies outside ClusterNet fd00:c1::/48',
        ],
      },
    },
    {
      name: "prefixes with host bits are reported once, give no loopback address and harm no other",
      address: "192.0.2.1",
      pods: ["10.192.1.5/24", "10.192.2.0/24", "10.192.1.5/24", "fd00:c1::5/64", "10.192.7.7/11"],
      want: {
        prefixes: ["192.0.2.1/32", "10.192.2.0/24"],
        loopback: ["10.192.2.1"],
        problems: [
          'prefix-malformed a: Cannot announce pod prefix 10.192.1.5/24 of node "a": it has bits set behind its prefix length, expected 10.192.1.0/24',
          'prefix-malformed a: Cannot announce pod prefix fd00:c1::5/64 of node "a": it has bits set behind its prefix length, expected fd00:c1::/64',
          'prefix-malformed a: Cannot announce pod prefix 10.192.7.7/11 of node "a": it has bits set behind its prefix length, expected 10.192.0.0/11',
        ],
      },
    },
    {
      name: "all of ClusterNet, or more, is nobody's",
      address: "192.0.2.1",
      pods: ["10.192.0.0/11", "10.0.0.0/8", "::/0"],
      want: {
        prefixes: ["192.0.2.1/32"],
        loopback: [],
        problems: [
          'prefix-too-wide a: Cannot announce pod prefix 10.192.0.0/11 of node "a": it takes in all of ClusterNet 10.192.0.0/11',
          'prefix-too-wide a: Cannot announce pod prefix 10.0.0.0/8 of node "a": it takes in all of ClusterNet 10.192.0.0/11',
          'prefix-too-wide a: Cannot announce pod prefix ::/0 of node "a": it takes in all of ClusterNet fd00:c1::/48',
        ],
      },
    },
  ])("$name", ({ address, pods, want }) => {
    expect(planned(address, pods)).toEqual(want);
  });

  test("a family without ClusterNet has no pod prefixes", () => {
    expect(planned("192.0.2.1", ["fd00:c1::/64"], [parsePrefix("10.192.0.0/11")])).toEqual({
      prefixes: ["192.0.2.1/32"],
      loopback: [],
      problems: [
        'prefix-outside a: Cannot announce pod prefix fd00:c1::/64 of node "a": no ClusterNet is IPv6',
      ],
    });
  });
});

describe("isAnnounced()", () => {
  const announcement = {
    publicKey: keyOf(1),
    prefixes: ["2001:db8::1/128", "10.192.1.0/24"].map(parsePrefix),
  };
  const shown = { id: "a", publicKey: keyOf(1), prefixes: ["2001:db8::1/128", "10.192.1.0/24"] };

  test.each([
    { name: "as announced", node: shown, want: true },
    { name: "in another order", node: { ...shown, prefixes: shown.prefixes.toReversed() }, want: true },
    {
      name: "with a prefix twice",
      node: { ...shown, prefixes: [...shown.prefixes, "10.192.1.0/24"] },
      want: true,
    },
    {
      name: "in upper case and long form (CASES 16)",
      node: { ...shown, prefixes: ["2001:0DB8:0::1/128", "10.192.1.0/24"] },
      want: true,
    },
    { name: "with another key", node: { ...shown, publicKey: keyOf(2) }, want: false },
    { name: "without a key", node: { ...shown, publicKey: "" }, want: false },
    { name: "with a prefix less", node: { ...shown, prefixes: ["10.192.1.0/24"] }, want: false },
    {
      name: "with a prefix more",
      node: { ...shown, prefixes: [...shown.prefixes, "10.192.2.0/24"] },
      want: false,
    },
    {
      name: "with another prefix",
      node: { ...shown, prefixes: ["2001:db8::1/128", "10.192.2.0/24"] },
      want: false,
    },
    { name: "with nonsense beside it", node: { ...shown, prefixes: [...shown.prefixes, "x"] }, want: false },
    { name: "with more prefixes than are looked at", node: { ...shown, prefixCount: 2000 }, want: false },
  ])("a picture that shows this node $name: $want", ({ node, want }) => {
    expect(isAnnounced(announcement, nodeOf(node))).toBe(want);
  });

  test("a picture without this node shows nothing of it", () => {
    expect(isAnnounced(announcement, undefined)).toBe(false);
  });
});
