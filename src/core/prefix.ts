/**
 * IP addresses and prefixes of both families: strict parsing, canonical text, order, containment.
 *
 * Parsing follows Go's net/netip, because the Curator compares texts that Go made: no leading zeros, no zone,
 * no netmask, no white space. Canonical text is RFC 5952 (IPv4-mapped addresses keep their dotted form, as netip
 * prints them). Octets and groups are read digit by digit: `Number()` takes "", " 1", "0x1" and "1e1".
 *
 * A picture of 10,000 nodes holds 640,000 prefixes, many of them perhaps nonsense, so `decodePrefix` gives the
 * reason as a value; `parsePrefix` and the others throw it.
 */
import { ClusternetError } from "../errors.ts";
import { type Bits, commonBits, compareBits, hasBitsBehind, maskBits } from "./bits.ts";
import { quote } from "./problem.ts";

export type Family = 4 | 6;

// Codes of characters: here, since the networks below are parsed while this file is loaded.
const dot = 46;
const zero = 48;
const colon = 58;
const lowerA = 97;
/** In place of an octet of which no digit has come yet. */
const noDigit = -1;
const notHex = -1;

/** An IP address. `text` is canonical, so two addresses are equal when their texts are. */
export interface Address extends Bits {
  readonly family: Family;
  readonly text: string;
}

/**
 * An IP network. `text` is canonical, so two prefixes are equal when their texts are. Its bits are those of the network
 * address; it has host bits only when it comes from `parseInterfacePrefix`.
 */
export interface Prefix extends Bits {
  readonly family: Family;
  /** 0 to 32 or 0 to 128. */
  readonly length: number;
  readonly text: string;
}

/** Of so many prefixes at most, looking through all of them is quicker than making a set. */
export const fewPrefixes = 8;

/** Why a text is not what it should be: what was found and what was expected, to stand after a colon. */
export interface Unreadable {
  readonly reason: string;
}

/** Parses an address. Throws ClusternetError that says what was found and expected. No zone. */
export function parseAddress(text: string): Address {
  const address = decodeAddress(text);
  if ("reason" in address) {
    throw new ClusternetError(`Cannot parse address ${quote(text)}: ${address.reason}`);
  }
  return address;
}

/** As netip.ParsePrefix: host bits are kept. Throws ClusternetError. */
export function parseInterfacePrefix(text: string): Prefix {
  const prefix = decodeInterfacePrefix(text);
  if ("reason" in prefix) throw new ClusternetError(`Cannot parse prefix ${quote(text)}: ${prefix.reason}`);
  return prefix;
}

/** A prefix without host bits, in any spelling (upper case, long form). Throws ClusternetError; with host bits the hint names the masked one. */
export function parsePrefix(text: string): Prefix {
  const prefix = parseInterfacePrefix(text);
  const masked = maskPrefix(prefix);
  if (prefix !== masked) {
    throw new ClusternetError(`Cannot parse prefix ${quote(text)}: ${hostBitsReason(masked)}`, {
      hint: `Use ${masked.text} for the network, or ${addressOf(prefix).text}/${familyBits(prefix.family)} for the one address`,
    });
  }
  return prefix;
}

/** `parseAddress` with the reason as a value. */
export function decodeAddress(text: string): Address | Unreadable {
  const value = readIpv4(text, 0, text.length);
  // A text that passed is canonical already: four decimal octets have one spelling.
  if (value !== undefined) return { family: 4, a: value, b: 0, c: 0, d: 0, text };
  if (!text.includes(":")) return expectedIpv4;
  const read = readIpv6(text);
  if ("reason" in read) return read;
  // The text itself where it is canonical: of two equal strings one is enough in memory, and it need not be made.
  const { a, b, c, d } = bitsOfGroups(read.groups);
  return { family: 6, a, b, c, d, text: read.isCanonical ? text : renderIpv6(read.groups) };
}

/** `parsePrefix` with the reason as a value. */
export function decodePrefix(text: string): Prefix | Unreadable {
  const prefix = decodeInterfacePrefix(text);
  if ("reason" in prefix || !hasBitsBehind(prefix, prefix.length)) return prefix;
  return { reason: hostBitsReason(maskPrefix(prefix)) };
}

/** The prefix with its host bits cleared; the same object when it has none. */
export function maskPrefix(prefix: Prefix): Prefix {
  const { family, length } = prefix;
  if (!hasBitsBehind(prefix, length)) return prefix;
  const bits = maskBits(prefix, length);
  return { family, ...bits, length, text: `${renderAddress(family, bits)}/${length}` };
}

/** Bits of an address of the family. */
export function familyBits(family: Family): 32 | 128 {
  return family === 4 ? 32 : 128;
}

/** The address as a prefix of one address: /32 or /128. */
export function hostPrefix(address: Address): Prefix {
  const length = familyBits(address.family);
  return { ...address, length, text: `${address.text}/${length}` };
}

/** The first address after the network address; of a prefix of one address that address itself (C4.3). */
export function firstHost(prefix: Prefix): Address {
  const { family, a, b, c, d, length } = maskPrefix(prefix);
  // The last bit of a network address is 0, so that nothing is carried.
  const next = length === familyBits(family) ? 0 : 1;
  const first = family === 4 ? { a: a | next, b, c, d } : { a, b, c, d: d | next };
  return { family, ...first, text: renderAddress(family, first) };
}

/** IPv4 before IPv6, then by address, then the wider first. */
export function comparePrefixes(a: Prefix, b: Prefix): number {
  if (a.family !== b.family) return a.family - b.family;
  return compareBits(a, b) || a.length - b.length;
}

/** True when `inner` lies inside `outer` or equals it. */
export function containsPrefix(outer: Prefix, inner: Prefix): boolean {
  return outer.length <= inner.length && sameNetwork(outer, inner, outer.length);
}

/** True when the address is one of the prefix's. */
export function containsAddress(outer: Prefix, address: Address): boolean {
  return sameNetwork(outer, address, outer.length);
}

/** True when the two have an address in common. */
export function overlaps(a: Prefix, b: Prefix): boolean {
  // Two prefixes are nested or have nothing in common.
  return sameNetwork(a, b, Math.min(a.length, b.length));
}

/**
 * Why an address cannot be an endpoint (C4.6), or undefined when it can: unspecified, loopback, link-local,
 * multicast, broadcast (255.255.255.255), IPv4-mapped. What depends on the host or on ClusterNet is not looked at here.
 */
export function unusableReason(address: Address): string | undefined {
  for (const { network, reason } of unusableNetworks) if (containsAddress(network, address)) return reason;
  return undefined;
}

const unusableNetworks: readonly { readonly network: Prefix; readonly reason: string }[] = [
  { network: parsePrefix("0.0.0.0/32"), reason: "it is the unspecified address" },
  { network: parsePrefix("127.0.0.0/8"), reason: "it is a loopback address" },
  { network: parsePrefix("169.254.0.0/16"), reason: "it is a link-local address" },
  { network: parsePrefix("224.0.0.0/4"), reason: "it is a multicast address" },
  { network: parsePrefix("255.255.255.255/32"), reason: "it is the broadcast address" },
  { network: parsePrefix("::/128"), reason: "it is the unspecified address" },
  { network: parsePrefix("::1/128"), reason: "it is the loopback address" },
  { network: parsePrefix("::ffff:0:0/96"), reason: "it is an IPv4-mapped address" },
  { network: parsePrefix("fe80::/10"), reason: "it is a link-local address" },
  { network: parsePrefix("ff00::/8"), reason: "it is a multicast address" },
];

function sameNetwork(x: Bits & { family: Family }, y: Bits & { family: Family }, length: number): boolean {
  return x.family === y.family && commonBits(x, y) >= length;
}

function addressOf({ family, a, b, c, d }: Prefix): Address {
  const bits = { a, b, c, d };
  return { family, ...bits, text: renderAddress(family, bits) };
}

function hostBitsReason(masked: Prefix): string {
  return `has bits set behind its prefix length, expected ${masked.text}`;
}

function decodeInterfacePrefix(text: string): Prefix | Unreadable {
  const slash = text.lastIndexOf("/");
  if (slash === -1) return { reason: "has no prefix length, expected ADDRESS/LENGTH" };
  const length = readDecimal(text, slash + 1, text.length);
  const value = readIpv4(text, 0, slash);
  // Of nearly every prefix, without an address of its own. The length has one spelling, and so has the address.
  if (value !== undefined && length !== undefined && length <= 32) {
    return { family: 4, a: value, b: 0, c: 0, d: 0, length, text };
  }
  const before = text.slice(0, slash);
  const address = decodeAddress(before);
  if ("reason" in address) return address;
  const bits = familyBits(address.family);
  if (length === undefined || length > bits) {
    return { reason: `prefix length is ${quote(text.slice(slash + 1))}, expected 0 to ${bits}` };
  }
  const { family, a, b, c, d } = address;
  return { family, a, b, c, d, length, text: address.text === before ? text : `${address.text}/${length}` };
}

/** A decimal number of one to three digits without leading zeros, or undefined. */
function readDecimal(text: string, from: number, to: number): number | undefined {
  if (to === from || to - from > 3) return undefined;
  let value = 0;
  for (let at = from; at < to; at++) {
    const digit = text.charCodeAt(at) - 48;
    if (digit < 0 || digit > 9) return undefined;
    value = value * 10 + digit;
  }
  return to - from > 1 && text.charCodeAt(from) === 48 ? undefined : value;
}

const expectedIpv4: Unreadable = {
  reason: "not an IPv4 address, expected four numbers from 0 to 255 without leading zeros, like 192.0.2.1",
};

/** The 32 bits, signed; undefined when it is none. */
function readIpv4(text: string, from: number, to: number): number | undefined {
  let [bits, dots, octet] = [0, 0, noDigit];
  for (let at = from; at < to; at++) {
    const code = text.charCodeAt(at);
    if (code === dot) {
      if (octet === noDigit || dots === 3) return undefined;
      bits = (bits << 8) | octet;
      dots++;
      octet = noDigit;
      continue;
    }
    const digit = code - zero;
    // Behind a leading zero there is no other digit.
    if (digit < 0 || digit > 9 || octet === 0) return undefined;
    octet = octet === noDigit ? digit : octet * 10 + digit;
    if (octet > 255) return undefined;
  }
  return dots === 3 && octet !== noDigit ? (bits << 8) | octet : undefined;
}

function notIpv6(found: string): Unreadable {
  return {
    reason: `not an IPv6 address: ${found}, expected eight groups of one to four hex digits, or fewer and one "::"`,
  };
}

/** An IPv6 address as it was read. */
interface Ipv6 {
  /** The eight groups of 16 bits. */
  readonly groups: readonly number[];
  /** The text is as `renderIpv6` would write it. */
  readonly isCanonical: boolean;
}

function readIpv6(text: string): Ipv6 | Unreadable {
  if (text.includes("%")) return { reason: "has a zone, expected an address without one" };
  const groups = [0, 0, 0, 0, 0, 0, 0, 0];
  let count = 0;
  /** Number of groups before "::". */
  let gap: number | undefined;
  /** No group has an upper-case digit or a zero in front, and none is written as IPv4. */
  let isPlain = true;
  let at = 0;
  if (text.startsWith("::")) {
    gap = 0;
    at = 2;
  }
  while (at < text.length) {
    if (count === 8) return notIpv6("more than eight groups");
    const from = at;
    let group = 0;
    for (; at < text.length && at - from <= 4; at++) {
      const code = text.charCodeAt(at);
      const digit = hexDigit(code);
      if (digit === notHex) break;
      if (code < lowerA && digit > 9) isPlain = false;
      group = group * 16 + digit;
    }
    if (text.charCodeAt(at) === dot) {
      // The last two groups may be written as an IPv4 address.
      const tail = readIpv4(text, from, text.length);
      if (tail === undefined || count > 6 || (gap === undefined && count !== 6)) {
        return notIpv6("an IPv4 address that is malformed or not in place of the last two groups");
      }
      groups[count++] = tail >>> 16;
      groups[count++] = tail & 0xffff;
      isPlain = false;
      break;
    }
    if (at === from) return notIpv6("an empty group or a character that is no hex digit");
    if (at - from > 4) return notIpv6("a group of more than four digits");
    if (at - from > 1 && text.charCodeAt(from) === zero) isPlain = false;
    groups[count++] = group;
    if (at === text.length) break;
    if (text.charCodeAt(at) !== colon) return notIpv6("a character that is no hex digit");
    at++;
    if (at === text.length) return notIpv6("a colon at the end");
    if (text.charCodeAt(at) === colon) {
      if (gap !== undefined) return notIpv6('two "::"');
      gap = count;
      at++;
    }
  }
  if (gap === undefined) {
    if (count !== 8) return notIpv6("fewer than eight groups");
    return { groups, isCanonical: isPlain && longestZeros(groups).length < 2 };
  }
  const gapLength = 8 - count;
  if (gapLength === 0) return notIpv6('a "::" that stands for nothing');
  for (let index = 7; index >= gap; index--) {
    groups[index] = index >= gap + gapLength ? (groups[index - gapLength] ?? 0) : 0;
  }
  const zeros = longestZeros(groups);
  return {
    groups,
    isCanonical:
      isPlain && gapLength > 1 && zeros.start === gap && zeros.length === gapLength && !isMapped(groups),
  };
}

function hexDigit(code: number): number {
  if (code >= zero && code <= 57) return code - zero;
  // Sets the bit that makes ASCII letters lower case.
  const lower = code | 32;
  return lower >= lowerA && lower <= 102 ? lower - 87 : notHex;
}

function bitsOfGroups(groups: readonly number[]): Bits {
  return { a: wordAt(groups, 0), b: wordAt(groups, 2), c: wordAt(groups, 4), d: wordAt(groups, 6) };
}

function wordAt(groups: readonly number[], index: number): number {
  return ((groups[index] ?? 0) << 16) | (groups[index + 1] ?? 0);
}

function renderAddress(family: Family, { a, b, c, d }: Bits): string {
  if (family === 4) return renderIpv4(a);
  return renderIpv6([a, b, c, d].flatMap((word) => [word >>> 16, word & 0xffff]));
}

function renderIpv4(value: number): string {
  return `${value >>> 24}.${(value >>> 16) & 255}.${(value >>> 8) & 255}.${value & 255}`;
}

function renderIpv6(groups: readonly number[]): string {
  if (isMapped(groups)) {
    const [, , , , , , seventh = 0, eighth = 0] = groups;
    return `::ffff:${renderIpv4(seventh * 65536 + eighth)}`;
  }
  const gap = longestZeros(groups);
  let text = "";
  for (let index = 0; index < 8; index++) {
    if (gap.length > 1 && index === gap.start) {
      text += "::";
      index += gap.length - 1;
      continue;
    }
    if (text !== "" && !text.endsWith("::")) text += ":";
    text += (groups[index] ?? 0).toString(16);
  }
  return text;
}

/** An IPv4-mapped address, which is written with a dotted end. */
function isMapped(groups: readonly number[]): boolean {
  return groups[5] === 0xffff && groups.every((group, index) => index > 4 || group === 0);
}

/** The first of the longest runs of zero groups. */
function longestZeros(groups: readonly number[]): { readonly start: number; readonly length: number } {
  let longest = { start: 0, length: 0 };
  let start = 0;
  for (let index = 0; index < groups.length; index++) {
    if (groups[index] !== 0) start = index + 1;
    else if (index + 1 - start > longest.length) longest = { start, length: index + 1 - start };
  }
  return longest;
}
