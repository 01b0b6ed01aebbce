/**
 * IP addresses and prefixes of both families: strict parsing, canonical text, order, containment.
 *
 * Parsing follows Go's net/netip, because the Curator compares texts that Go made: no leading zeros, no zone
 * in a prefix, no netmask, no white space. Canonical text is RFC 5952 (IPv4-mapped addresses keep their
 * dotted form, as netip prints them).
 */

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

/** Parses an address. Throws ClusternetError that says what was found and expected. No zone. */
export function parseAddress(_text: string): Address {
  throw new Error("unwritten");
}

/** As netip.ParsePrefix: host bits are kept. Throws ClusternetError. */
export function parseInterfacePrefix(_text: string): Prefix {
  throw new Error("unwritten");
}

/** A prefix without host bits, in any spelling (upper case, long form). Throws ClusternetError; with host bits the hint names the masked one. */
export function parsePrefix(_text: string): Prefix {
  throw new Error("unwritten");
}

/** The prefix with its host bits cleared. */
export function maskPrefix(_prefix: Prefix): Prefix {
  throw new Error("unwritten");
}

/** Bits of an address of the family. */
export function familyBits(family: Family): 32 | 128 {
  return family === 4 ? 32 : 128;
}

/** The address as a prefix of one address: /32 or /128. */
export function hostPrefix(_address: Address): Prefix {
  throw new Error("unwritten");
}

/** The first address after the network address; of a prefix of one address that address itself (C4.3). */
export function firstHost(_prefix: Prefix): Address {
  throw new Error("unwritten");
}

/** IPv4 before IPv6, then by address, then the wider first. */
export function comparePrefixes(_a: Prefix, _b: Prefix): number {
  throw new Error("unwritten");
}

/** True when `inner` lies inside `outer` or equals it. */
export function containsPrefix(_outer: Prefix, _inner: Prefix): boolean {
  throw new Error("unwritten");
}

export function containsAddress(_outer: Prefix, _address: Address): boolean {
  throw new Error("unwritten");
}

/** True when the two have an address in common. */
export function overlaps(_a: Prefix, _b: Prefix): boolean {
  throw new Error("unwritten");
}

/**
 * Why an address cannot be an endpoint (C4.6), or undefined when it can: unspecified, loopback, link-local,
 * multicast, broadcast (255.255.255.255), IPv4-mapped. What depends on the host or on ClusterNet is not looked at here.
 */
export function unusableReason(_address: Address): string | undefined {
  throw new Error("unwritten");
}
