/**
 * The mesh as the text that `wg setconf` reads, and back.
 *
 * Canonical: the same mesh gives the same bytes whatever order the peers came in, so "did anything change?" is a
 * comparison of strings. The text is also the last known good mesh, read again at the next start.
 *
 * Everything in it but node IDs is text that this program made from parsed values, and a node ID has no white
 * space (C4.7), so nothing from another node can begin a line. Any line may be the private key, mistyped: errors
 * name its number and show none of it.
 */
import { ClusternetError } from "../errors.ts";
import { decodePublicKey, type PrivateKey, parsePrivateKey, type PublicKey } from "./key.ts";
import { differingRange, type Mesh, type Peer } from "./mesh.ts";
import { asNodeId, type Node, type NodeId } from "./node.ts";
import { type Address, comparePrefixes, decodeAddress, decodePrefix, type Prefix } from "./prefix.ts";

/** What holds for every peer alike. */
export interface WgSettings {
  readonly listenPort: number;
  /** PersistentKeepalive of every peer. */
  readonly keepaliveSeconds?: number;
}

export interface WgConfig extends WgSettings {
  readonly mesh: Mesh;
}

const headline = "# Written by clusternet, which replaces the whole file at every change of the mesh.";
const nodeComment = "# node = ";

/** The whole file. `privateKey` undefined prints "(hidden)" in its place, for --dry-run. */
export function renderWgConfig(config: WgConfig, privateKey: PrivateKey | undefined): string {
  const peers = config.mesh.peers
    .map((peer) => ({ ...peer, prefixes: peer.prefixes.toSorted(comparePrefixes) }))
    .toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
  return renderHead(config, privateKey) + renderPeers(peers, config);
}

function renderHead({ listenPort }: WgSettings, privateKey: PrivateKey | undefined): string {
  const key = privateKey === undefined ? "(hidden)" : privateKey.reveal();
  return `${headline}\n[Interface]\nPrivateKey = ${key}\nListenPort = ${listenPort}\n`;
}

/** Of peers as they are in a mesh: in order, and so their prefixes. */
function renderPeers(peers: readonly Peer[], { listenPort, keepaliveSeconds }: WgSettings): string {
  const keepalive = keepaliveSeconds === undefined ? "" : `PersistentKeepalive = ${keepaliveSeconds}\n`;
  let text = "";
  for (const { nodeId, publicKey, address, prefixes } of peers) {
    text += `\n${nodeComment}${nodeId}\n[Peer]\nPublicKey = ${publicKey}\n`;
    if (address !== undefined) text += `Endpoint = ${renderEndpoint(address, listenPort)}\n`;
    let before = "AllowedIPs = ";
    for (const prefix of prefixes) {
      text += before + prefix.text;
      before = ", ";
    }
    text += prefixes.length > 0 ? `\n${keepalive}` : keepalive;
  }
  return text;
}

interface Piece {
  /** Of how many peers. */
  readonly count: number;
  readonly bytes: Uint8Array;
}

/** So many peers are cut into pieces of this size. */
function sizeOfPieces(count: number): number {
  return count <= 2 * peersOfPiece ? count : peersOfPiece;
}

/** What is left for the last of these pieces. */
function lastPieceOf(count: number): number {
  return count === 0 ? 0 : count % sizeOfPieces(count) || sizeOfPieces(count);
}

function encode(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** A piece of the text has so many peers when it is made, and at most twice as many before it is cut. */
const peersOfPiece = 64;

/**
 * The file of one mesh after the other: the bytes of what `renderWgConfig` gives, at the cost of the peers that are not
 * the same objects as in the mesh before. They are kept in pieces of neighbouring peers, so that nothing as large as the
 * whole is made for a change; pieces that did not change are the same arrays as before.
 */
export class WgConfigText {
  readonly #settings: WgSettings;
  readonly #head: Uint8Array;
  #peers: readonly Peer[] = [];
  #pieces: readonly Piece[] = [];

  constructor(settings: WgSettings, privateKey: PrivateKey) {
    this.#settings = settings;
    this.#head = encode(renderHead(settings, privateKey));
  }

  render({ peers }: Mesh): readonly Uint8Array[] {
    const { from, beforeTo, afterTo } = differingRange(this.#peers, peers);
    // Pieces that lie wholly in what both have in common stay; all between them is cut anew.
    const kept: Piece[] = [];
    const keptBehind: Piece[] = [];
    let begin = 0;
    let end = peers.length;
    let at = 0;
    for (const piece of this.#pieces) {
      const to = at + piece.count;
      if (to <= from) {
        kept.push(piece);
        begin = to;
      } else if (at >= beforeTo) {
        if (keptBehind.length === 0) end = at + afterTo - beforeTo;
        keptBehind.push(piece);
      }
      at = to;
    }
    // What is cut anew takes small neighbours along, or nodes that come one by one would leave as many pieces.
    const before = kept.at(-1);
    if (before !== undefined && before.count + end - begin <= peersOfPiece) {
      begin -= before.count;
      kept.pop();
    }
    const [behind] = keptBehind;
    if (behind !== undefined && lastPieceOf(end - begin) + behind.count <= peersOfPiece) {
      end += behind.count;
      keptBehind.shift();
    }
    this.#peers = peers;
    this.#pieces = [...kept, ...this.#cut(peers.slice(begin, end)), ...keptBehind];
    return [this.#head, ...this.#pieces.map(({ bytes }) => bytes)];
  }

  #cut(peers: readonly Peer[]): Piece[] {
    const size = sizeOfPieces(peers.length);
    const pieces: Piece[] = [];
    for (let from = 0; from < peers.length; from += size) {
      const piece = peers.slice(from, from + size);
      pieces.push({ count: piece.length, bytes: encode(renderPeers(piece, this.#settings)) });
    }
    return pieces;
  }
}

/** As `wg` writes and reads it: 192.0.2.2:7838 or [2001:db8::2]:7838. */
export function renderEndpoint(address: Address, port: number): string {
  return address.family === 4 ? `${address.text}:${port}` : `[${address.text}]:${port}`;
}

/** What a file of ours holds. */
export interface ParsedWgConfig {
  readonly privateKey: PrivateKey;
  readonly listenPort: number;
  readonly nodes: readonly Node[];
}

/**
 * Reads a file that `renderWgConfig` wrote, in one pass. The peers come back as nodes (endpoint as external address), to be
 * judged like any other; their texts are parsed already. Throws ClusternetError naming the line number but never its text,
 * when the file is not one of ours: a line that is not understood, a peer without its `# node =` line, a setting, node or
 * public key twice.
 */
export function parseWgConfig(text: string): ParsedWgConfig {
  const steps = parseWgConfigInSteps(text);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** A step of reading has so many lines, which take some milliseconds. */
const linesOfStep = 3_000;

/** As `parseWgConfig`, with a rest after each some thousand lines: a file of 10,000 nodes has 60,000. */
export function* parseWgConfigInSteps(text: string): Generator<void, ParsedWgConfig> {
  // The end of the last line is the end of the file: without it the file was cut off.
  if (text !== "" && !text.endsWith("\n")) throw unreadable(text.split("\n").length, "a line without an end");
  const reader = new ConfigReader();
  // A piece of the text would keep all of it in memory, private key and all, so each line is made of its bytes. What is
  // no ASCII is nothing that is kept.
  const bytes = Buffer.from(text);
  let line = 0;
  for (let from = 0; from < bytes.length;) {
    const to = bytes.indexOf(newline, from);
    reader.take(bytes.toString("latin1", from, to), ++line);
    from = to + 1;
    if (line % linesOfStep === 0) yield;
  }
  return reader.finish(line);
}

const newline = 10;
const interfaceHead = "[Interface]";
const peerHead = "[Peer]";

/** A section that is being read: what its settings have said so far. */
interface InterfaceSection {
  readonly kind: "interface";
  readonly line: number;
  privateKey?: PrivateKey;
  listenPort?: number;
}

interface PeerSection {
  readonly kind: "peer";
  readonly line: number;
  readonly nodeId: NodeId;
  publicKey?: PublicKey;
  address?: Address;
  prefixes?: readonly Prefix[];
  keepaliveSeconds?: number;
}

/** Takes one line after the other. */
class ConfigReader {
  #interface: Pick<ParsedWgConfig, "privateKey" | "listenPort"> | undefined;
  /** What every endpoint ends with. */
  #portText = "";
  #section: InterfaceSection | PeerSection | undefined;
  /** Of the line before. */
  #nodeId: NodeId | undefined;
  readonly #nodes: Node[] = [];
  readonly #ids = new Set<NodeId>();
  readonly #keys = new Set<PublicKey>();

  take(content: string, line: number): void {
    if (content === peerHead) {
      this.#beginPeer(line);
    } else if (this.#nodeId !== undefined) {
      throw unreadable(line, "no [Peer] after the line of its node");
    } else if (content === interfaceHead) {
      this.#endSection();
      if (this.#interface !== undefined) throw unreadable(line, "a second [Interface] section");
      this.#section = { kind: "interface", line };
    } else if (content.startsWith(nodeComment)) {
      this.#nodeId = asNodeId(content.slice(nodeComment.length));
      if (this.#nodeId === undefined) throw unreadable(line, "no node ID");
    } else if (content !== "" && !content.startsWith("#")) {
      this.#takeSetting((name) => valueOf(name, content), line);
    }
  }

  /** After the last line, which has this number. */
  finish(line: number): ParsedWgConfig {
    if (this.#nodeId !== undefined) throw unreadable(line, "no [Peer] after the line of its node");
    this.#endSection();
    if (this.#interface === undefined) throw unreadable(1, "no [Interface] section at the start");
    return { ...this.#interface, nodes: this.#nodes };
  }

  #beginPeer(line: number): void {
    const nodeId = this.#nodeId;
    this.#nodeId = undefined;
    this.#endSection();
    if (this.#interface === undefined) throw unreadable(line, "no [Interface] section at the start");
    if (nodeId === undefined) throw unreadable(line, `a [Peer] without "${nodeComment}…" on the line before`);
    this.#section = { kind: "peer", line, nodeId };
  }

  /** `read` gives the value when the setting has that name. */
  #takeSetting(read: (name: string) => string | undefined, line: number): void {
    const section = this.#section;
    let value: string | undefined;
    if (section?.kind === "peer") {
      if ((value = read("PublicKey")) !== undefined) {
        requireFirst("PublicKey", section.publicKey, line);
        section.publicKey = parseKey(value, line);
      } else if ((value = read("Endpoint")) !== undefined) {
        requireFirst("Endpoint", section.address, line);
        section.address = parseEndpoint(value, line, this.#portText);
      } else if ((value = read("AllowedIPs")) !== undefined) {
        requireFirst("AllowedIPs", section.prefixes, line);
        section.prefixes = parseAllowedIps(value, line);
      } else if ((value = read("PersistentKeepalive")) !== undefined) {
        requireFirst("PersistentKeepalive", section.keepaliveSeconds, line);
        section.keepaliveSeconds = parseNumber(value, line);
      }
    } else if (section !== undefined) {
      if ((value = read("PrivateKey")) !== undefined) {
        requireFirst("PrivateKey", section.privateKey, line);
        section.privateKey = parseOwnKey(value, line);
      } else if ((value = read("ListenPort")) !== undefined) {
        requireFirst("ListenPort", section.listenPort, line);
        section.listenPort = parseNumber(value, line);
      }
    }
    if (value === undefined) throw unreadable(line, "a line that is not understood");
  }

  #endSection(): void {
    const section = this.#section;
    this.#section = undefined;
    if (section === undefined) return;
    const { line } = section;
    if (section.kind === "interface") {
      const { privateKey, listenPort } = section;
      if (privateKey === undefined) throw unreadable(line, "a section without PrivateKey");
      if (listenPort === undefined) throw unreadable(line, "a section without ListenPort");
      this.#interface = { privateKey, listenPort };
      this.#portText = `:${listenPort}`;
      return;
    }
    const { nodeId, publicKey, address, prefixes = [] } = section;
    if (publicKey === undefined) throw unreadable(line, "a section without PublicKey");
    // A set that has not grown by it had it before.
    const count = this.#nodes.length + 1;
    if (this.#ids.add(nodeId).size < count) throw unreadable(line, "a node that was there before");
    if (this.#keys.add(publicKey).size < count) throw unreadable(line, "a public key that was there before");
    this.#nodes.push({
      id: nodeId,
      state: "unknown",
      publicKey,
      externalAddress: address?.text ?? "",
      prefixes: prefixes.map(({ text }) => text),
      prefixCount: prefixes.length,
      consensusMember: false,
      parsed: { publicKey, address, prefixes },
    });
  }
}

function parseOwnKey(text: string, line: number): PrivateKey {
  try {
    return parsePrivateKey(text);
  } catch (cause) {
    throw unreadable(line, "an unusable PrivateKey", cause);
  }
}

function parseKey(text: string, line: number): PublicKey {
  const key = decodePublicKey(text);
  if (typeof key !== "string") throw unreadable(line, "an unusable PublicKey");
  return key;
}

function parseAllowedIps(text: string, line: number): readonly Prefix[] {
  return text.split(", ").map((each) => {
    const prefix = decodePrefix(each);
    if ("reason" in prefix || prefix.text !== each) throw unreadable(line, "a malformed prefix");
    return prefix;
  });
}

/** The address of an endpoint as `renderEndpoint` writes it. The port is the one of the whole mesh. */
function parseEndpoint(text: string, line: number, portText: string): Address {
  const host = text.endsWith(portText) ? text.slice(0, -portText.length) : "";
  const isBracketed = host.startsWith("[") && host.endsWith("]");
  const hostText = isBracketed ? host.slice(1, -1) : host;
  const address = decodeAddress(hostText);
  if ("reason" in address || address.text !== hostText || (address.family === 6) !== isBracketed) {
    throw unreadable(line, "an endpoint that is not an IP address and the listen port");
  }
  return address;
}

/** A port or a number of seconds: both have 16 bits. */
function parseNumber(text: string, line: number): number {
  const number = /^[1-9][0-9]{0,4}$/.test(text) ? Number(text) : 0;
  if (number < 1 || number > 65_535) throw unreadable(line, "a number that is not 1 to 65535");
  return number;
}

/** The value when the line gives one for this name. */
function valueOf(name: string, content: string): string | undefined {
  return content.startsWith(name) && content.startsWith(" = ", name.length)
    ? content.slice(name.length + 3)
    : undefined;
}

function requireFirst(name: string, before: unknown, line: number): void {
  if (before !== undefined) throw unreadable(line, `${name} for the second time`);
}

function unreadable(line: number, found: string, cause?: unknown): ClusternetError {
  return new ClusternetError(
    `Cannot parse configuration: line ${line}: ${found}`,
    cause === undefined ? {} : { cause },
  );
}
