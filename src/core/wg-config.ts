/**
 * The mesh as the text that `wg setconf` reads.
 *
 * Canonical: the same mesh gives the same bytes whatever order the peers came in, so "did anything change?" is a
 * comparison of strings. The text is also the last known good mesh, read again at the next start (wg-config-reader.ts).
 *
 * Everything in it but node IDs is text that this program made from parsed values, and a node ID has no white
 * space (C4.7), so nothing from another node can begin a line.
 */
import type { PrivateKey } from "./key.ts";
import { differingRange, type Mesh, type Peer } from "./mesh.ts";
import { type Address, comparePrefixes } from "./prefix.ts";

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
/** Begins the line before the section of a peer; the node ID follows. */
export const nodeComment = "# node = ";

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
