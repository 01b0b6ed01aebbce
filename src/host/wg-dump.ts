/**
 * Reads what `wg show NAME dump` prints: the interface and its peers.
 *
 * The private key, which stands in its first line, is dropped while parsing and never part of an error.
 */
import type { SeenInterface, SeenPeer } from "../core/host-plan.ts";
import type { PublicKey } from "../core/key.ts";
import { decodeAddress, decodePrefix } from "../core/prefix.ts";
import type { SeenPeers } from "../core/seen-peers.ts";
import { ClusternetError } from "../errors.ts";
import { keyLength, KeyedLines } from "./keyed-lines.ts";

export type WgDump = Pick<SeenInterface, "publicKey" | "listenPort" | "fwmark" | "peers">;

const keyForm = /^[A-Za-z0-9+/]{43}=$/;

/** Parses `wg show NAME dump`. Throws ClusternetError that names the line's number, never its text. */
export function parseWgDump(text: string): WgDump {
  const reader = new WgDumpReader();
  reader.push(Buffer.from(text));
  const dump = reader.finish();
  return { ...dump, peers: new Map(dump.peers) };
}

/** A peer with 1,024 prefixes of IPv6, which is as many as one node may have, takes a fortieth of it. */
const maxDumpLineBytes = 2 * 1024 * 1024;

/** A dump that was read: what it is worth when the next one is. */
export interface ReadDump {
  readonly peers: SeenPeers;
  /** The line of each peer. */
  readonly lines: KeyedLines;
  /** The same peers, as they are made of these lines. */
  readonly dumped: DumpedPeers;
}

/**
 * The peers of a dump, each made of its line when it is asked for. Those of lines that were parsed are kept until they
 * are forgotten, which is worth the while when hardly any will be asked for again: of 10,000 peers of three prefixes they
 * take four times the room of their lines.
 */
class DumpedPeers implements ReadonlyMap<PublicKey, SeenPeer> {
  readonly #lines: KeyedLines;
  #kept: Map<PublicKey, SeenPeer> = new Map();
  /** Those of the kept ones that the dump before showed otherwise. */
  readonly #changed = new Map<PublicKey, SeenPeer>();

  /** The peers of these lines: of those that are given to `keep`, and of those that have been read before and found in order. */
  constructor(lines: KeyedLines) {
    this.#lines = lines;
  }

  keep(publicKey: PublicKey, peer: SeenPeer, isNew: boolean): void {
    this.#kept.set(publicKey, peer);
    if (!isNew) this.#changed.set(publicKey, peer);
  }

  /** Lets peers go that were new: one that changes is likely to change again, and is asked for then. */
  forget(): void {
    this.#kept = this.#changed;
  }

  get size(): number {
    return this.#lines.count;
  }

  get(publicKey: PublicKey): SeenPeer | undefined {
    return this.kept(publicKey) ?? this.#make(this.#lines.lineOf(publicKey));
  }

  /** The peer if it is there without being made. */
  kept(publicKey: PublicKey): SeenPeer | undefined {
    return this.#kept.get(publicKey);
  }

  has(publicKey: PublicKey): boolean {
    return this.#kept.has(publicKey) || this.#lines.has(publicKey);
  }

  /** All of them are there without being made, as after the first dump. */
  get #areAllKept(): boolean {
    return this.#kept.size === this.#lines.count;
  }

  entries(): MapIterator<[PublicKey, SeenPeer]> {
    return this.#areAllKept ? this.#kept.entries() : this.#made();
  }

  *#made(): Generator<[PublicKey, SeenPeer], undefined> {
    for (const line of this.#lines.all()) {
      const publicKey = line.slice(0, keyLength) as PublicKey;
      const peer = this.kept(publicKey) ?? this.#make(line);
      if (peer !== undefined) yield [publicKey, peer];
    }
    return undefined;
  }

  keys(): MapIterator<PublicKey> {
    return this.#areAllKept ? this.#kept.keys() : this.#keysOfLines();
  }

  *#keysOfLines(): Generator<PublicKey, undefined> {
    for (const line of this.#lines.all()) yield line.slice(0, keyLength) as PublicKey;
    return undefined;
  }

  values(): MapIterator<SeenPeer> {
    return this.entries().map(([, peer]) => peer);
  }

  [Symbol.iterator](): MapIterator<[PublicKey, SeenPeer]> {
    return this.entries();
  }

  forEach(use: (peer: SeenPeer, publicKey: PublicKey, map: ReadonlyMap<PublicKey, SeenPeer>) => void): void {
    for (const [publicKey, peer] of this.entries()) use(peer, publicKey, this);
  }

  #make(line: string | undefined): SeenPeer | undefined {
    if (line === undefined) return undefined;
    const fields = line.split("\t");
    return { ...readDumpedPeer(fields, 0), allowedIps: parseAllowedIps(fields[3]) };
  }
}

/**
 * Parses `wg show NAME dump` while it comes: 2 MB at 10,000 peers. Lines that are as in the dump `before` are not parsed,
 * and when all are so all peers together stay the same object. Throws as `parseWgDump`.
 */
export class WgDumpReader {
  readonly #before: ReadDump | undefined;
  /** Peers that the dump before did not show so. */
  readonly #others: PublicKey[] = [];
  readonly #lines: KeyedLines;
  #link: Omit<WgDump, "peers"> | undefined;
  /** Of the first line, which is not kept: the private key is in it. */
  #head = Buffer.alloc(0);
  readonly #dumped: DumpedPeers;
  /** Lines that were as before. */
  #same = 0;

  constructor(before?: ReadDump) {
    this.#before = before;
    this.#lines = new KeyedLines(before?.lines);
    this.#dumped = new DumpedPeers(this.#lines);
  }

  push(piece: Uint8Array): void {
    if (this.#link === undefined) {
      this.#head = Buffer.concat([this.#head, piece]);
      const to = this.#head.indexOf(newline);
      if (to === -1) {
        if (this.#head.length > maxDumpLineBytes) throw unreadableDump(1, "an end of the line");
        return;
      }
      this.#link = readDumpedLink(this.#head.toString("latin1", 0, to));
      this.#lines.push(this.#head.subarray(to + 1));
      this.#head = Buffer.alloc(0);
    } else {
      this.#lines.push(piece);
    }
    this.#readLines();
    if (this.#lines.restLength > maxDumpLineBytes) {
      throw unreadableDump(this.#lines.count + 2, "an end of the line");
    }
  }

  finish(): WgDump {
    if (this.#head.length > 0 || this.#lines.restLength > 0) this.push(lineEnd);
    if (this.#link === undefined) throw unreadableDump(1, "4 fields of an interface");
    const isAsBefore = this.#others.length === 0 && this.#gone().length === 0;
    return { ...this.#link, peers: (isAsBefore ? this.#before?.peers : undefined) ?? this.#dumped };
  }

  /**
   * Peers that show otherwise than in the dump before, are new or are gone; undefined: there was none before. Known when
   * this one is finished.
   */
  get changed(): readonly PublicKey[] | undefined {
    return this.#before === undefined ? undefined : [...this.#others, ...this.#gone()];
  }

  /** For the reader of the next dump; asked for when this one is finished, with the peers that it gave. */
  remember(peers: SeenPeers): ReadDump {
    if (this.#before?.peers === peers) return this.#before;
    return { peers, lines: this.#lines.fit(), dumped: this.#dumped };
  }

  #gone(): readonly PublicKey[] {
    const { peers } = this.#before ?? {};
    if (peers === undefined) return [];
    const known = this.#others.filter((publicKey) => peers.has(publicKey)).length;
    if (this.#same + known === peers.size) return [];
    return [...peers.keys()].filter((publicKey) => this.#lines.lineOf(publicKey) === undefined);
  }

  #readLines(): void {
    for (;;) {
      switch (this.#lines.next(this.#before?.lines)) {
        case "none":
          return;
        case "double":
          throw unreadableDump(this.#lines.count + 2, "each peer once");
        case "same":
          this.#same++;
          break;
        case "other":
          this.#readPeer(this.#lines.text, this.#lines.count + 1);
      }
    }
  }

  #readPeer(text: string, line: number): void {
    const fields = text.split("\t");
    const publicKey = this.#lines.key as PublicKey;
    if (fields.length !== 8 || fields[0] !== publicKey || !keyForm.test(publicKey)) {
      throw unreadableDump(line, "8 fields of a peer");
    }
    const before = this.#before?.dumped.kept(publicKey);
    // Most of those that change have shaken hands or sent something: their prefixes are as they were.
    const allowedIps =
      before !== undefined && fields[3] === this.#before?.lines.lineOf(publicKey)?.split("\t")[3]
        ? before.allowedIps
        : parseAllowedIps(fields[3]);
    const isNew = this.#before?.dumped.has(publicKey) !== true;
    this.#dumped.keep(publicKey, { ...readDumpedPeer(fields, line), allowedIps }, isNew);
    this.#others.push(publicKey);
  }
}

const newline = 10;
const lineEnd = Uint8Array.of(newline);

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

function readDumpedPeer(fields: readonly string[], line: number): Omit<SeenPeer, "allowedIps"> {
  const [, preshared, endpoint = "(none)", , handshake, received, sent, keepalive] = fields;
  const numberOf = (field: string | undefined, most: number): number => {
    const number = readNumber(field, most);
    if (number === undefined) throw unreadableDump(line, "numbers of a peer");
    return number;
  };
  return {
    ...(endpoint === "(none)" ? {} : { endpoint: canonicalEndpoint(endpoint) }),
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
  // Of a peer that has been silent, three times.
  if (text === "0") return 0;
  const number = /^(?:[0-9]{1,20}|0x[0-9a-f]{1,8})$/.test(text) ? Number(text) : Number.NaN;
  return number <= most ? number : undefined;
}

function unreadableDump(line: number, expected: string): ClusternetError {
  return new ClusternetError(`Cannot read the output of "wg show dump": line ${line}, expected ${expected}`);
}

function parseAllowedIps(text = ""): readonly string[] {
  if (text === "(none)" || text === "") return [];
  return (
    text
      .split(",")
      .map((each) => (each.includes(":") && each.includes(".") ? canonicalPrefix(each) : each))
      // Without a comparison to call, sorting a few takes ten times as long.
      .toSorted((a, b) => (a < b ? -1 : a > b ? 1 : 0))
  );
}

// The C library writes some IPv6 addresses with a dotted end where we do not, and all others as we do.
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
