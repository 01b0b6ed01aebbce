/**
 * Reads what `wg show NAME dump` prints: the interface and its peers.
 *
 * The private key, which stands in its first line, is dropped while parsing and never part of an error.
 */
import type { SeenInterface, SeenPeer } from "../core/host-plan.ts";
import type { PublicKey } from "../core/key.ts";
import { decodeAddress, decodePrefix } from "../core/prefix.ts";
import type { SeenPeers } from "../core/seen-peers.ts";
import { SharedMap } from "../core/shared-map.ts";
import { ClusternetError } from "../errors.ts";

export type WgDump = Pick<SeenInterface, "publicKey" | "listenPort" | "fwmark" | "peers">;

const keyForm = /^[A-Za-z0-9+/]{43}=$/;

/** Parses `wg show NAME dump`. Throws ClusternetError that names the line's number, never its text. */
export function parseWgDump(text: string): WgDump {
  const reader = new WgDumpReader();
  reader.push(Buffer.from(text));
  return reader.finish();
}

/** A peer with 1,024 prefixes of IPv6, which is as many as one node may have, takes a fortieth of it. */
const maxDumpLineBytes = 2 * 1024 * 1024;

/** A dump that was read: what it is worth when the next one is. */
export interface ReadDump {
  readonly peers: SeenPeers;
  /** The line of each peer. */
  readonly lines: SharedMap<PublicKey, string>;
}

/**
 * Parses `wg show NAME dump` while it comes: 2 MB at 10,000 peers. Lines that are as in the dump `before` are not parsed:
 * their peers stay the same objects, and when all are so do all peers together. Throws as `parseWgDump`.
 */
export class WgDumpReader {
  readonly #before: ReadDump | undefined;
  /** Peers that the dump before did not show so, and the lines of them. */
  readonly #peers = new Map<PublicKey, SeenPeer>();
  readonly #lines = new Map<PublicKey, string>();
  readonly #keys = new Set<PublicKey>();
  #link: Omit<WgDump, "peers"> | undefined;
  /** The beginning of a line whose end has not come yet. */
  #rest: Uint8Array = new Uint8Array();
  #line = 0;

  constructor(before?: ReadDump) {
    this.#before = before;
  }

  push(piece: Uint8Array): void {
    const bytes = Buffer.concat([this.#rest, piece]);
    let from = 0;
    for (let to = bytes.indexOf(newline); to !== -1; to = bytes.indexOf(newline, from)) {
      // A string of its own for each line: a part of a large one would keep all of that in memory.
      this.#read(bytes.toString("latin1", from, to));
      from = to + 1;
    }
    this.#rest = bytes.subarray(from);
    if (this.#rest.length > maxDumpLineBytes) throw unreadableDump(this.#line + 1, "an end of the line");
  }

  finish(): WgDump {
    this.#read(Buffer.from(this.#rest).toString("latin1"));
    if (this.#link === undefined) throw unreadableDump(1, "4 fields of an interface");
    return { ...this.#link, peers: this.#before?.peers.renew(this.#peers, this.#gone()) ?? this.#peers };
  }

  /** For the reader of the next dump; asked for when this one is finished, with the peers that it gave. */
  remember(peers: SeenPeers): ReadDump {
    if (this.#before === undefined) return { peers, lines: SharedMap.of(this.#lines) };
    const lines = this.#before.lines.edit();
    for (const publicKey of this.#gone()) lines.delete(publicKey);
    for (const [publicKey, line] of this.#lines) lines.set(publicKey, line);
    return { peers, lines: lines.finish() };
  }

  #gone(): PublicKey[] {
    const { lines } = this.#before ?? {};
    if (lines === undefined) return [];
    const known = this.#keys.size - [...this.#peers.keys()].filter((key) => !lines.has(key)).length;
    return known === lines.size ? [] : [...lines.keys()].filter((key) => !this.#keys.has(key));
  }

  #read(line: string): void {
    if (line === "") return;
    this.#line++;
    if (this.#line === 1) {
      this.#link = readDumpedLink(line);
      return;
    }
    const publicKey = line.slice(0, keyLength) as PublicKey;
    if (this.#keys.has(publicKey)) throw unreadableDump(this.#line, "each peer once");
    this.#keys.add(publicKey);
    if (this.#before?.lines.get(publicKey) === line) return;
    const fields = line.split("\t");
    if (fields.length !== 8 || fields[0] !== publicKey || !keyForm.test(publicKey)) {
      throw unreadableDump(this.#line, "8 fields of a peer");
    }
    this.#peers.set(publicKey, readDumpedPeer(fields, this.#line));
    this.#lines.set(publicKey, line);
  }
}

const newline = 10;
const keyLength = 44;

function readDumpedLink(line: string): Omit<WgDump, "peers"> {
  const [, publicKey = "", listenPort = "", fwmark = "", ...more] = line.split("\t");
  if (fwmark === "" || more.length > 0) throw unreadableDump(1, "4 fields of an interface");
  const port = readNumber(listenPort, 0xffff);
  const mark = fwmark === "off" ? 0 : readNumber(fwmark, 0xffff_ffff);
  if (port === undefined || mark === undefined) throw unreadableDump(1, "numbers of an interface");
  return {
    ...(keyForm.test(publicKey) ? { publicKey: publicKey as PublicKey } : {}),
    listenPort: port,
    fwmark: mark,
  };
}

function readDumpedPeer(fields: readonly string[], line: number): SeenPeer {
  const [, preshared, endpoint = "(none)", allowedIps = "", handshake, received, sent, keepalive] = fields;
  const numberOf = (field: string | undefined, most: number): number => {
    const number = readNumber(field, most);
    if (number === undefined) throw unreadableDump(line, "numbers of a peer");
    return number;
  };
  return {
    ...(endpoint === "(none)" ? {} : { endpoint: canonicalEndpoint(endpoint) }),
    allowedIps: parseAllowedIps(allowedIps),
    latestHandshakeSeconds: numberOf(handshake, maxSeconds),
    receivedBytes: numberOf(received, maxCounter),
    sentBytes: numberOf(sent, maxCounter),
    ...(keepalive === "off" ? {} : { keepaliveSeconds: numberOf(keepalive, 0xffff) }),
    hasPresharedKey: preshared !== "(none)",
  };
}

/** The last second that a date can name without a sign in front of its year. */
const maxSeconds = 253_402_300_799;
/** `wg` counts bytes with 64 bits. */
const maxCounter = 2 ** 64;

/** A whole number, in hexadecimal with 0x in front, or undefined. */
export function readNumber(text = "", most: number): number | undefined {
  const number = /^(?:[0-9]{1,20}|0x[0-9a-f]{1,8})$/.test(text) ? Number(text) : Number.NaN;
  return number <= most ? number : undefined;
}

function unreadableDump(line: number, expected: string): ClusternetError {
  return new ClusternetError(`Cannot read the output of "wg show dump": line ${line}, expected ${expected}`);
}

function parseAllowedIps(text: string): readonly string[] {
  if (text === "(none)" || text === "") return [];
  return (
    text
      .split(",")
      .map((each) => (each.includes(":") ? canonicalPrefix(each) : each))
      // Without a comparison to call, sorting a few takes ten times as long.
      .toSorted((a, b) => (a < b ? -1 : a > b ? 1 : 0))
  );
}

// The C library writes some IPv6 addresses with a dotted end where we do not.
function canonicalPrefix(text: string): string {
  const prefix = decodePrefix(text);
  return "text" in prefix ? prefix.text : text;
}

function canonicalEndpoint(text: string): string {
  const [, address, port] = /^\[([^\]]+)\](:\d+)$/.exec(text) ?? [];
  return address === undefined ? text : `[${canonicalAddress(address)}]${port}`;
}

/** The text by which an address is known here, whatever form a program wrote it in; what is none, as it is. */
export function canonicalAddress(text: string): string {
  const address = decodeAddress(text);
  return "text" in address ? address.text : text;
}
