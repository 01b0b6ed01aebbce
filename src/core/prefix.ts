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
import { quote } from "./problem.ts";

export type Family = 4 | 6;

/** An IP address. `text` is canonical, so two addresses are equal when their texts are. */
export interface Address {
  readonly family: Family;
  /** 32 or 128 bits. */
  readonly value: bigint;
  readonly text: string;
}

/** An IP network. `text` is canonical, so two prefixes are equal when their texts are. */
export interface Prefix {
  readonly family: Family;
  /** Network address; has host bits only when it comes from `parseInterfacePrefix`. */
  readonly value: bigint;
  /** 0 to 32 or 0 to 128. */
  readonly length: number;
  readonly text: string;
}

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
  if (!text.includes(":")) {
    const value = readIpv4(text);
    // A text that passed is canonical already: four decimal octets have one spelling.
    return typeof value === "number" ? { family: 4, value: BigInt(value), text } : value;
  }
  const groups = readIpv6(text);
  if ("reason" in groups) return groups;
  const rendered = renderIpv6(groups);
  // The text itself where it is canonical: of two equal strings one is enough in memory.
  return { family: 6, value: valueOfGroups(groups), text: rendered === text ? text : rendered };
}

/** `parsePrefix` with the reason as a value. */
export function decodePrefix(text: string): Prefix | Unreadable {
  const prefix = decodeInterfacePrefix(text);
  if ("reason" in prefix) return prefix;
  const masked = maskPrefix(prefix);
  return prefix === masked ? prefix : { reason: hostBitsReason(masked) };
}

/** The prefix with its host bits cleared; the same object when it has none. */
export function maskPrefix(prefix: Prefix): Prefix {
  const { family, length } = prefix;
  const hostBits = BigInt(familyBits(family) - length);
  const value = (prefix.value >> hostBits) << hostBits;
  if (value === prefix.value) return prefix;
  return { family, value, length, text: `${renderAddress(family, value)}/${length}` };
}

/** Bits of an address of the family. */
export function familyBits(family: Family): 32 | 128 {
  return family === 4 ? 32 : 128;
}

/** The address as a prefix of one address: /32 or /128. */
export function hostPrefix(address: Address): Prefix {
  const length = familyBits(address.family);
  return { family: address.family, value: address.value, length, text: `${address.text}/${length}` };
}

/** The first address after the network address; of a prefix of one address that address itself (C4.3). */
export function firstHost(prefix: Prefix): Address {
  const { family, value, length } = maskPrefix(prefix);
  const first = length === familyBits(family) ? value : value + 1n;
  return { family, value: first, text: renderAddress(family, first) };
}

/** IPv4 before IPv6, then by address, then the wider first. */
export function comparePrefixes(a: Prefix, b: Prefix): number {
  if (a.family !== b.family) return a.family - b.family;
  if (a.value !== b.value) return a.value < b.value ? -1 : 1;
  return a.length - b.length;
}

/** True when `inner` lies inside `outer` or equals it. */
export function containsPrefix(outer: Prefix, inner: Prefix): boolean {
  return outer.length <= inner.length && sameNetwork(outer, inner, outer.length);
}

/** True when the address is one of the prefix's. */
export function containsAddress(outer: Prefix, address: Address): boolean {
  return sameNetwork(outer, address, outer.length);
}

/** The last address of the prefix, as a number. */
export function lastValue({ family, value, length }: Prefix): bigint {
  return value | ((1n << BigInt(familyBits(family) - length)) - 1n);
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
  return unusableNetworks.find(({ network }) => containsAddress(network, address))?.reason;
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

function sameNetwork(
  a: { readonly family: Family; readonly value: bigint },
  b: { readonly family: Family; readonly value: bigint },
  length: number,
): boolean {
  return a.family === b.family && (a.value ^ b.value) >> BigInt(familyBits(a.family) - length) === 0n;
}

function addressOf({ family, value }: Prefix): Address {
  return { family, value, text: renderAddress(family, value) };
}

function hostBitsReason(masked: Prefix): string {
  return `has bits set behind its prefix length, expected ${masked.text}`;
}

function decodeInterfacePrefix(text: string): Prefix | Unreadable {
  const slash = text.lastIndexOf("/");
  if (slash === -1) return { reason: "has no prefix length, expected ADDRESS/LENGTH" };
  const before = text.slice(0, slash);
  const address = decodeAddress(before);
  if ("reason" in address) return address;
  const bits = familyBits(address.family);
  const digits = text.slice(slash + 1);
  const length = readDecimal(digits, 0, digits.length);
  if (length === undefined || length > bits) {
    return { reason: `prefix length is ${quote(digits)}, expected 0 to ${bits}` };
  }
  // The length has one spelling.
  const canonical = address.text === before ? text : `${address.text}/${length}`;
  return { family: address.family, value: address.value, length, text: canonical };
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

function readIpv4(text: string): number | Unreadable {
  let value = 0;
  let from = 0;
  for (let octets = 0; octets < 4; octets++) {
    const dot = octets === 3 ? text.length : text.indexOf(".", from);
    if (dot === -1) return expectedIpv4;
    const octet = readDecimal(text, from, dot);
    if (octet === undefined || octet > 255) return expectedIpv4;
    value = value * 256 + octet;
    from = dot + 1;
  }
  return value;
}

function notIpv6(found: string): Unreadable {
  return {
    reason: `not an IPv6 address: ${found}, expected eight groups of one to four hex digits, or fewer and one "::"`,
  };
}

/** The eight groups of 16 bits. */
function readIpv6(text: string): readonly number[] | Unreadable {
  if (text.includes("%")) return { reason: "has a zone, expected an address without one" };
  const groups: number[] = [];
  /** Number of groups before "::". */
  let gap: number | undefined;
  let at = 0;
  if (text.startsWith("::")) {
    gap = 0;
    at = 2;
  }
  while (at < text.length) {
    if (groups.length === 8) return notIpv6("more than eight groups");
    const from = at;
    let group = 0;
    for (let digit = hexDigit(text, at); digit !== undefined && at - from <= 4; digit = hexDigit(text, at)) {
      group = group * 16 + digit;
      at++;
    }
    if (text[at] === ".") {
      // The last two groups may be written as an IPv4 address.
      const tail = readIpv4(text.slice(from));
      if (typeof tail !== "number" || groups.length > 6 || (gap === undefined && groups.length !== 6)) {
        return notIpv6("an IPv4 address that is malformed or not in place of the last two groups");
      }
      groups.push(Math.floor(tail / 65536), tail % 65536);
      break;
    }
    if (at === from) return notIpv6("an empty group or a character that is no hex digit");
    if (at - from > 4) return notIpv6("a group of more than four digits");
    groups.push(group);
    if (at === text.length) break;
    if (text[at] !== ":") return notIpv6("a character that is no hex digit");
    at++;
    if (at === text.length) return notIpv6("a colon at the end");
    if (text[at] === ":") {
      if (gap !== undefined) return notIpv6('two "::"');
      gap = groups.length;
      at++;
    }
  }
  if (gap === undefined) return groups.length === 8 ? groups : notIpv6("fewer than eight groups");
  if (groups.length === 8) return notIpv6('a "::" that stands for nothing');
  const zeros = Array.from({ length: 8 - groups.length }, () => 0);
  return [...groups.slice(0, gap), ...zeros, ...groups.slice(gap)];
}

function hexDigit(text: string, at: number): number | undefined {
  const code = text.charCodeAt(at);
  if (code >= 48 && code <= 57) return code - 48;
  // Sets the bit that makes ASCII letters lower case.
  const lower = code | 32;
  return lower >= 97 && lower <= 102 ? lower - 87 : undefined;
}

function valueOfGroups(groups: readonly number[]): bigint {
  // Three groups at a time, as many as fit an exact number: arithmetic of bigints is what parsing costs.
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0] = groups;
  const high = BigInt((a * 65536 + b) * 65536 + c);
  const middle = BigInt((d * 65536 + e) * 65536 + f);
  return (((high << 48n) | middle) << 32n) | BigInt(g * 65536 + h);
}

function renderAddress(family: Family, value: bigint): string {
  if (family === 4) return renderIpv4(Number(value));
  return renderIpv6(
    Array.from({ length: 8 }, (_, index) => Number((value >> BigInt(112 - 16 * index)) & 0xffffn)),
  );
}

function renderIpv4(value: number): string {
  return `${value >>> 24}.${(value >>> 16) & 255}.${(value >>> 8) & 255}.${value & 255}`;
}

function renderIpv6(groups: readonly number[]): string {
  const [, , , , , sixth = 0, seventh = 0, eighth = 0] = groups;
  if (sixth === 0xffff && groups.every((group, index) => index > 4 || group === 0)) {
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
