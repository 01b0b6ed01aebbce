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
import { decodePublicKey, type PrivateKey, parsePrivateKey } from "./key.ts";
import { differingRange, type Mesh, type Peer } from "./mesh.ts";
import { asNodeId, type Node, type NodeId } from "./node.ts";
import { type Address, comparePrefixes, decodeAddress, decodePrefix } from "./prefix.ts";

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
  const peers = config.mesh.peers.toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
  return renderHead(config, privateKey) + renderPeers(peers, config);
}

function renderHead({ listenPort }: WgSettings, privateKey: PrivateKey | undefined): string {
  const key = privateKey === undefined ? "(hidden)" : privateKey.reveal();
  return `${headline}\n[Interface]\nPrivateKey = ${key}\nListenPort = ${listenPort}\n`;
}

function renderPeers(peers: readonly Peer[], { listenPort, keepaliveSeconds }: WgSettings): string {
  const lines: string[] = [];
  for (const peer of peers) {
    lines.push("", `${nodeComment}${peer.nodeId}`, "[Peer]", `PublicKey = ${peer.publicKey}`);
    if (peer.address !== undefined) lines.push(`Endpoint = ${renderEndpoint(peer.address, listenPort)}`);
    if (peer.prefixes.length > 0) {
      const prefixes = peer.prefixes.toSorted(comparePrefixes);
      lines.push(`AllowedIPs = ${prefixes.map(({ text }) => text).join(", ")}`);
    }
    if (keepaliveSeconds !== undefined) lines.push(`PersistentKeepalive = ${keepaliveSeconds}`);
  }
  return lines.length === 0 ? "" : `${lines.join("\n")}\n`;
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
 * Reads a file that `renderWgConfig` wrote. The peers come back as nodes (endpoint as external address), to be
 * judged like any other. Throws ClusternetError naming the line number but never its text, when the file is not one of ours: a line that
 * is not understood, a peer without its `# node =` line, a setting, node or public key twice.
 */
export function parseWgConfig(text: string): ParsedWgConfig {
  const sections = splitSections(text);
  const [first, ...peers] = sections;
  if (first?.kind !== "interface") throw unreadable(first?.line ?? 1, "no [Interface] section at the start");
  const { privateKey, listenPort } = parseInterface(first);

  const nodes: Node[] = [];
  const ids = new Set<NodeId>();
  const keys = new Set<string>();
  for (const section of peers) {
    if (section.kind !== "peer") throw unreadable(section.line, "a second [Interface] section");
    const node = parsePeer(section, listenPort);
    if (ids.has(node.id)) throw unreadable(section.line, "a node that was there before");
    if (keys.has(node.publicKey)) throw unreadable(section.line, "a public key that was there before");
    ids.add(node.id);
    keys.add(node.publicKey);
    nodes.push(node);
  }
  return { privateKey, listenPort, nodes };
}

interface Setting {
  readonly line: number;
  readonly value: string;
}

interface Section {
  readonly kind: "interface" | "peer";
  readonly line: number;
  /** Of the `# node =` line right before it. */
  readonly nodeId: NodeId | undefined;
  readonly settings: Map<string, Setting>;
}

function splitSections(text: string): readonly Section[] {
  const lines = text.split("\n");
  // The end of the last line is the end of the file: without it the file was cut off.
  if (lines.pop() !== "") throw unreadable(lines.length + 1, "a line without an end");
  const sections: Section[] = [];
  let nodeId: NodeId | undefined;
  for (const [index, content] of lines.entries()) {
    const line = index + 1;
    if (nodeId !== undefined && content !== "[Peer]")
      throw unreadable(line, "no [Peer] after the line of its node");
    if (content === "[Interface]" || content === "[Peer]") {
      const kind = content === "[Peer]" ? "peer" : "interface";
      sections.push({ kind, line, nodeId, settings: new Map() });
      nodeId = undefined;
    } else if (content.startsWith(nodeComment)) {
      nodeId = asNodeId(content.slice(nodeComment.length));
      if (nodeId === undefined) throw unreadable(line, "no node ID");
    } else if (content !== "" && !content.startsWith("#")) {
      addSetting(sections.at(-1), content, line);
    }
  }
  if (nodeId !== undefined) throw unreadable(lines.length, "no [Peer] after the line of its node");
  return sections;
}

const knownSettings: Readonly<Record<Section["kind"], ReadonlySet<string>>> = {
  interface: new Set(["PrivateKey", "ListenPort"]),
  peer: new Set(["PublicKey", "Endpoint", "AllowedIPs", "PersistentKeepalive"]),
};

function addSetting(section: Section | undefined, content: string, line: number): void {
  const equals = content.indexOf(" = ");
  const name = content.slice(0, Math.max(0, equals));
  if (section === undefined || !knownSettings[section.kind].has(name)) {
    throw unreadable(line, "a line that is not understood");
  }
  if (section.settings.has(name)) throw unreadable(line, `${name} for the second time`);
  section.settings.set(name, { line, value: content.slice(equals + 3) });
}

function parseInterface(section: Section): Pick<ParsedWgConfig, "privateKey" | "listenPort"> {
  const key = section.settings.get("PrivateKey");
  if (key === undefined) throw unreadable(section.line, "a section without PrivateKey");
  const port = section.settings.get("ListenPort");
  if (port === undefined) throw unreadable(section.line, "a section without ListenPort");
  let privateKey: PrivateKey;
  try {
    privateKey = parsePrivateKey(key.value);
  } catch (cause) {
    throw unreadable(key.line, "an unusable PrivateKey", cause);
  }
  return { privateKey, listenPort: parseNumber(port) };
}

function parsePeer({ line, nodeId, settings }: Section, listenPort: number): Node {
  if (nodeId === undefined) throw unreadable(line, `a [Peer] without "${nodeComment}…" on the line before`);
  const publicKey = settings.get("PublicKey");
  if (publicKey === undefined) throw unreadable(line, "a section without PublicKey");
  if (typeof decodePublicKey(publicKey.value) !== "string")
    throw unreadable(publicKey.line, "an unusable PublicKey");
  const keepalive = settings.get("PersistentKeepalive");
  if (keepalive !== undefined) parseNumber(keepalive);
  const prefixes = parseAllowedIps(settings.get("AllowedIPs"));
  return {
    id: nodeId,
    state: "unknown",
    publicKey: publicKey.value,
    externalAddress: parseEndpoint(settings.get("Endpoint"), listenPort),
    prefixes,
    prefixCount: prefixes.length,
    consensusMember: false,
  };
}

function parseAllowedIps(setting: Setting | undefined): readonly string[] {
  if (setting === undefined) return [];
  const texts = setting.value.split(", ");
  for (const text of texts) {
    const prefix = decodePrefix(text);
    if ("reason" in prefix || prefix.text !== text) throw unreadable(setting.line, "a malformed prefix");
  }
  return texts;
}

/** The address of an endpoint; "" when there is none. The port is the one of the whole mesh. */
function parseEndpoint(setting: Setting | undefined, listenPort: number): string {
  if (setting === undefined) return "";
  const colon = setting.value.lastIndexOf(":");
  const host = setting.value.slice(0, Math.max(0, colon));
  const address = decodeAddress(host.startsWith("[") ? host.slice(1, -1) : host);
  if ("reason" in address || renderEndpoint(address, listenPort) !== setting.value) {
    throw unreadable(setting.line, "an endpoint that is not an IP address and the listen port");
  }
  return address.text;
}

/** A port or a number of seconds: both have 16 bits. */
function parseNumber({ line, value }: Setting): number {
  const number = /^[1-9][0-9]{0,4}$/.test(value) ? Number(value) : 0;
  if (number < 1 || number > 65_535) throw unreadable(line, "a number that is not 1 to 65535");
  return number;
}

function unreadable(line: number, found: string, cause?: unknown): ClusternetError {
  return new ClusternetError(
    `Cannot parse configuration: line ${line}: ${found}`,
    cause === undefined ? {} : { cause },
  );
}
