/**
 * Addresses and prefixes: against what Go's net/netip made of the same texts (fixtures/prefixes.json), against
 * node:net and URL, and by properties. Sets of prefixes (`sets` in the fixture) belong to the library's `Prefixes`.
 */
import { describe, expect, test } from "bun:test";
import { isIP } from "node:net";
import * as fc from "fast-check";
import {
  type Address,
  comparePrefixes,
  containsAddress,
  containsPrefix,
  decodeAddress,
  decodePrefix,
  type Family,
  familyBits,
  firstHost,
  hostPrefix,
  maskPrefix,
  overlaps,
  parseAddress,
  parseInterfacePrefix,
  parsePrefix,
  type Prefix,
  unusableReason,
} from "../../src/core/prefix.ts";
import golden from "../fixtures/prefixes.json" with { type: "json" };

interface GoldenPrefix {
  readonly input: string;
  readonly ok: boolean;
  readonly string?: string;
  readonly masked?: string;
  readonly canonical?: boolean;
  readonly family?: number;
  readonly in_cluster_net?: boolean;
  readonly loopback_address?: string | null;
  readonly agent_accepts: boolean;
  readonly agent_allowed_ip?: string;
}
interface GoldenAddress {
  readonly input: string;
  readonly parse_addr_ok: boolean;
  readonly parse_addr?: string;
  readonly status_accepts: boolean;
}
const goldenPrefixes: readonly GoldenPrefix[] = golden.prefixes;
const goldenAddresses: readonly GoldenAddress[] = golden.addresses;
const clusterNet = parsePrefix(golden.cluster_net);

/** The message of what `action` throws; fails when it throws nothing. */
function messageOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
  throw new Error("nothing was thrown");
}

function outcome(text: string): string | undefined {
  const prefix = decodePrefix(text);
  return "reason" in prefix ? undefined : prefix.text;
}

describe("agreement with Go's net/netip", () => {
  test("the fixture is whole", () => {
    expect([goldenPrefixes.length, goldenAddresses.length]).toEqual([227, 41]);
  });

  test.each(goldenPrefixes.map((want) => ({ want, name: JSON.stringify(want.input) })))(
    "parseInterfacePrefix() reads $name as netip does",
    ({ want }) => {
      if (!want.ok) {
        expect(() => parseInterfacePrefix(want.input)).toThrow("Cannot parse prefix ");
        expect(() => parsePrefix(want.input)).toThrow("Cannot parse prefix ");
        return;
      }
      const prefix = parseInterfacePrefix(want.input);
      const masked = maskPrefix(prefix);
      expect<object>({
        string: prefix.text,
        masked: masked.text,
        canonical: masked === prefix,
        family: familyBits(prefix.family),
        // Upstream asks for the address and the length apart.
        in_cluster_net: prefix.length >= clusterNet.length && containsAddress(clusterNet, prefix),
      }).toEqual({
        string: want.string,
        masked: want.masked,
        canonical: want.canonical,
        family: want.family,
        in_cluster_net: want.in_cluster_net,
      });
      expect(parseInterfacePrefix(prefix.text)).toEqual(prefix);
      expect(outcome(want.input)).toBe(want.canonical === true ? want.string : undefined);
    },
  );

  test("firstHost() differs from upstream only where upstream takes an address that is not the prefix's first", () => {
    const different = goldenPrefixes.flatMap((want) => {
      if (!want.ok) return [];
      const prefix = parseInterfacePrefix(want.input);
      return firstHost(prefix).text === want.loopback_address ? [] : [prefix];
    });
    // Upstream takes the next after the address as written: of a single host that is another node's address.
    const expected = goldenPrefixes.flatMap((want) => {
      if (!want.ok) return [];
      const prefix = parseInterfacePrefix(want.input);
      return prefix.length === familyBits(prefix.family) || want.canonical !== true ? [prefix] : [];
    });
    expect(different).toEqual(expected);
    expect(different.length).toBe(63);
  });

  test("decodePrefix() is stricter than upstream's agent on exactly these texts", () => {
    const stricter = goldenPrefixes
      .filter(
        ({ input, agent_accepts, agent_allowed_ip }) => agent_accepts && outcome(input) !== agent_allowed_ip,
      )
      .map(({ input }) => input);
    const leadingZeros = ["10.200.0.0/024", "10.200.0.0/00", "2001:db8::/064", "::/00", "::/08"];
    // net.ParseCIDR clears the host bits without a word; the Curator refuses such a prefix, and so do we.
    const hostBits = stricter.filter((input) => !leadingZeros.includes(input) && !isMapped(input));
    // net.ParseCIDR makes IPv4 of them; to netip, the Curator and the kernel they are IPv6.
    const mapped = [
      "::ffff:10.200.0.0/120",
      "::ffff:10.200.0.0/24",
      "::ffff:10.200.0.0/96",
      "::ffff:192.0.2.1/128",
      "::ffff:c000:201/128",
      "::FFFF:10.192.0.0/107",
      "::ffff:0:0/96",
      "::ffff:10.200.0.5/120",
      "0:0:0:0:0:ffff:0a00:0001/128",
    ];
    expect(stricter.toSorted()).toEqual([...leadingZeros, ...hostBits, ...mapped].toSorted());
    for (const input of hostBits) {
      expect(messageOf(() => parsePrefix(input))).toContain(
        "has bits set behind its prefix length, expected",
      );
    }
    expect(hostBits).toContain("10.200.0.5/24");
    expect(hostBits.length).toBe(
      goldenPrefixes.filter(({ ok, canonical, input }) => ok && canonical !== true && !isMapped(input))
        .length,
    );
  });

  test("parseAddress() reads what netip.ParseAddr reads, but for zones", () => {
    for (const want of goldenAddresses) {
      const address = decodeAddress(want.input);
      const text = "reason" in address ? undefined : address.text;
      const zone = ["2001:db8::1%eth0", "fe80::1%eth0"].includes(want.input);
      expect([want.input, text]).toEqual([
        want.input,
        want.parse_addr_ok && !zone ? want.parse_addr : undefined,
      ]);
    }
  });

  test("unusableReason() refuses exactly these of the addresses that upstream takes into a node's status", () => {
    const refused = goldenAddresses.flatMap(({ input, status_accepts }) => {
      if (!status_accepts) return [];
      const reason = unusableReason(parseAddress(input));
      return reason === undefined ? [] : [[input, reason]];
    });
    expect(refused).toEqual([
      ["0.0.0.0", "it is the unspecified address"],
      ["127.0.0.1", "it is a loopback address"],
      ["255.255.255.255", "it is the broadcast address"],
      ["224.0.0.1", "it is a multicast address"],
      ["169.254.1.1", "it is a link-local address"],
      ["::", "it is the unspecified address"],
      ["::1", "it is the loopback address"],
      ["fe80::1", "it is a link-local address"],
      ["::ffff:192.0.2.1", "it is an IPv4-mapped address"],
      ["::ffff:c000:201", "it is an IPv4-mapped address"],
      ["ff02::1", "it is a multicast address"],
    ]);
  });
});

function isMapped(text: string): boolean {
  const prefix = parseInterfacePrefix(text.replace(/\/0+(?=\d)/, "/"));
  return prefix.family === 6 && valueOf(prefix) >> 32n === 0xffffn;
}

describe("messages", () => {
  test.each([
    ["10.0.0.0/33", 'Cannot parse prefix "10.0.0.0/33": prefix length is "33", expected 0 to 32'],
    ["10.0.0.0", 'Cannot parse prefix "10.0.0.0": has no prefix length, expected ADDRESS/LENGTH'],
    [
      "10.192.5.1/24",
      'Cannot parse prefix "10.192.5.1/24": has bits set behind its prefix length, expected 10.192.5.0/24',
    ],
    [
      "10.0.0.256/8",
      'Cannot parse prefix "10.0.0.256/8": not an IPv4 address, expected four numbers from 0 to 255 without leading zeros, like 192.0.2.1',
    ],
    ["fe80::1%eth0/64", 'Cannot parse prefix "fe80::1%eth0/64": has a zone, expected an address without one'],
    [
      "\u001b[31m\n[Peer]/24",
      'Cannot parse prefix "\\u{1b}[31m\\u{a}[Peer]/24": not an IPv4 address, expected four numbers from 0 to 255 without leading zeros, like 192.0.2.1',
    ],
  ])("parsePrefix(%j) says what was found and expected", (text, message) => {
    expect(messageOf(() => parsePrefix(text))).toBe(message);
  });

  test("parsePrefix() hints at both prefixes that host bits may have meant", () => {
    expect(() => parsePrefix("10.192.5.1/24")).toThrow(
      expect.objectContaining({
        hint: "Use 10.192.5.0/24 for the network, or 10.192.5.1/32 for the one address",
      }),
    );
  });
});

/** The address as one number. */
function valueOf({ family, a, b, c, d }: Prefix): bigint {
  const words = family === 4 ? [a] : [a, b, c, d];
  return words.reduce((sum, word) => (sum << 32n) | BigInt(word >>> 0), 0n);
}

const anyFamily = fc.constantFrom<Family>(4, 6);

/** Addresses full of zero and all-one groups, where spelling is hard. */
const groups = fc.array(fc.oneof(fc.constantFrom(0, 0, 0xffff, 1), fc.nat(0xffff)), {
  minLength: 8,
  maxLength: 8,
});

function hex(list: readonly number[]): string {
  return list.map((group) => group.toString(16)).join(":");
}

const anyAddress: fc.Arbitrary<Address> = anyFamily.chain((family) =>
  family === 4 ? fc.ipV4().map(parseAddress) : groups.map((list) => parseAddress(hex(list))),
);

const anyPrefix: fc.Arbitrary<Prefix> = fc
  .tuple(anyAddress, fc.nat(128))
  .map(([address, length]) =>
    maskPrefix(parseInterfacePrefix(`${address.text}/${length % (familyBits(address.family) + 1)}`)),
  );

/** Two prefixes that often have to do with each other: every other time the second has addresses of the first. */
const twoPrefixes = fc
  .tuple(anyPrefix, anyPrefix, fc.nat(128), fc.boolean())
  .map(([a, b, length, related]): readonly [Prefix, Prefix] => {
    if (!related) return [a, b];
    const address = a.text.slice(0, a.text.indexOf("/"));
    return [a, maskPrefix(parseInterfacePrefix(`${address}/${length % (familyBits(a.family) + 1)}`))];
  });

describe("properties", () => {
  test("decodeAddress() takes what node:net takes, for texts made of the characters of addresses", () => {
    const soup = fc.string({ unit: fc.constantFrom(...Array.from(".:::0123456789afAF x")), maxLength: 24 });
    const damaged = fc.tuple(fc.oneof(fc.ipV4(), fc.ipV6()), fc.nat(40), soup).map(([text, at, junk]) => {
      return text.slice(0, at) + junk.slice(0, 2) + text.slice(at + (junk.length % 3));
    });
    fc.assert(
      fc.property(fc.oneof(fc.ipV4(), fc.ipV6(), soup, damaged), (text) => {
        const address = decodeAddress(text);
        expect("reason" in address ? 0 : address.family).toBe(isIP(text));
      }),
      { numRuns: 20_000 },
    );
  });

  test("IPv6 text is what URL makes of it, but for IPv4-mapped addresses", () => {
    fc.assert(
      fc.property(groups, (list) => {
        const text = list.map((group) => group.toString(16).toUpperCase().padStart(4, "0")).join(":");
        const address = parseAddress(text);
        fc.pre(!address.text.startsWith("::ffff:") || !address.text.includes("."));
        expect(`[${address.text}]`).toBe(new URL(`http://[${text}]/`).hostname);
        expect(parseAddress(address.text)).toEqual(address);
      }),
      { numRuns: 2_000 },
    );
  });

  test("IPv6 text is the same whatever part of the zeros is left out of what is read", () => {
    fc.assert(
      fc.property(groups, fc.nat(7), fc.integer({ min: 1, max: 8 }), (list, from, length) => {
        const to = Math.min(8, from + length);
        fc.pre(list.slice(from, to).every((group) => group === 0));
        const address = decodeAddress(`${hex(list.slice(0, from))}::${hex(list.slice(to))}`);
        expect(address).toEqual(parseAddress(hex(list)));
      }),
      { numRuns: 2_000 },
    );
  });

  test("containsPrefix() and overlaps() agree with the first and last address", () => {
    fc.assert(
      fc.property(twoPrefixes, ([a, b]) => {
        const sameFamily = a.family === b.family;
        const first = valueOf;
        const last = (prefix: Prefix): bigint =>
          valueOf(prefix) | ((1n << BigInt(familyBits(prefix.family) - prefix.length)) - 1n);
        expect(containsPrefix(a, b)).toBe(sameFamily && first(a) <= first(b) && last(b) <= last(a));
        expect(overlaps(a, b)).toBe(sameFamily && first(a) <= last(b) && first(b) <= last(a));
        expect(overlaps(a, b)).toBe(overlaps(b, a));
        expect(containsAddress(a, firstHost(b))).toBe(overlaps(a, hostPrefix(firstHost(b))));
      }),
      { numRuns: 5_000 },
    );
  });

  test("comparePrefixes() puts a prefix right behind those that contain it", () => {
    fc.assert(
      fc.property(twoPrefixes, ([a, b]) => {
        expect(Math.sign(comparePrefixes(a, b))).toBe(-Math.sign(comparePrefixes(b, a)) + 0);
        expect(comparePrefixes(a, b) === 0).toBe(a.text === b.text);
        if (containsPrefix(a, b)) expect(comparePrefixes(a, b)).toBeLessThanOrEqual(0);
      }),
    );
  });

  test("firstHost() is an address of its prefix", () => {
    fc.assert(
      fc.property(anyPrefix, (prefix) => expect(containsAddress(prefix, firstHost(prefix))).toBe(true)),
    );
  });
});

test("IPv4 and IPv6 never contain each other", () => {
  const everything4 = parsePrefix("0.0.0.0/0");
  const everything6 = parsePrefix("::/0");
  expect(containsPrefix(everything6, everything4)).toBe(false);
  expect(overlaps(everything4, everything6)).toBe(false);
  expect(containsAddress(everything6, parseAddress("10.0.0.1"))).toBe(false);
  expect(containsAddress(everything4, parseAddress("::ffff:10.0.0.1"))).toBe(false);
});
