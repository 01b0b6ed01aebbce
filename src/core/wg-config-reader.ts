/**
 * Reads the file of a mesh back that wg-config.ts wrote, and nothing else: the last known good mesh at a start.
 *
 * Any line may be the private key, mistyped: errors name its number and show none of it.
 */
import { ClusternetError } from "../errors.ts";
import { decodePublicKey, type PrivateKey, parsePrivateKey, type PublicKey } from "./key.ts";
import { asNodeId, type Node, type NodeId } from "./node.ts";
import { type Address, decodeAddress, decodePrefix, type Prefix } from "./prefix.ts";
import { nodeComment } from "./wg-config.ts";

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
