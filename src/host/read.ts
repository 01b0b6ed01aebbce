/**
 * Reads what this host shows: the interface, the routes of ClusterNet, the addresses.
 *
 * Only reads. `ip -N` gives numbers where names depend on files under /etc/iproute2. A UAPI socket of wireguard-go
 * is asked only when it belongs to this network namespace and the link is here too: /run/wireguard is shared by the
 * namespaces of a host, so that a socket of our name may lead to another namespace's interface.
 *
 * The private key that `wg show … dump` prints is dropped while parsing and never part of an error.
 */
import { readFile } from "node:fs/promises";
import * as v from "valibot";
import type { SeenHost, SeenInterface, SeenPeer, SeenRoute } from "../core/host-plan.ts";
import { linkGroup, routeProtocol } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import {
  decodeAddress,
  decodePrefix,
  familyBits,
  parsePrefix,
  type Family,
  type Prefix,
} from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import { SeenPeers } from "../core/seen-peers.ts";
import { SharedMap } from "../core/shared-map.ts";
import { ipNumber } from "../core/underlay.ts";
import { ClusternetError } from "../errors.ts";
import type { RunCommand } from "./command.ts";

/** A link as `ip -N -j -d address show` prints it. */
export interface IpLink {
  readonly index: number;
  readonly name: string;
  /** "wireguard", "tun", "bridge" …; absent for a link without one, like a network card. */
  readonly kind?: string;
  readonly group: number;
  readonly mtu: number;
  readonly up: boolean;
  /** Canonical texts, in the kernel's order. */
  readonly addresses: readonly string[];
}

// `ip` prints an empty object for a link that a filter leaves out, so every field may be missing.
const linkSchema = v.array(
  v.object({
    ifindex: v.optional(ipNumber),
    ifname: v.optional(v.string()),
    flags: v.optional(v.array(v.string()), []),
    mtu: v.optional(ipNumber, 0),
    group: v.optional(v.string(), "0"),
    linkinfo: v.optional(v.object({ info_kind: v.optional(v.string()) })),
    addr_info: v.optional(v.array(v.object({ local: v.optional(v.string()) })), []),
  }),
);

/** Parses `ip -N -j -d address show` (or `link show`, without addresses). Throws ClusternetError. */
export function parseIpLinks(text: string): IpLink[] {
  return parseJson("ip address show", linkSchema, text).flatMap((link) => {
    if (link.ifindex === undefined || link.ifname === undefined) return [];
    const kind = link.linkinfo?.info_kind;
    return [
      {
        index: link.ifindex,
        name: link.ifname,
        ...(kind === undefined ? {} : { kind }),
        group: numberOrName(link.group),
        mtu: link.mtu,
        up: link.flags.includes("UP"),
        addresses: link.addr_info.flatMap(({ local }) =>
          local === undefined ? [] : [canonicalAddress(local)],
        ),
      },
    ];
  });
}

/** A name stands for some number that is not ours; -1 is none of them. */
function numberOrName(text: string): number {
  return readNumber(text, 0xffff_ffff) ?? -1;
}

function canonicalAddress(text: string): string {
  const address = decodeAddress(text);
  return "text" in address ? address.text : text;
}

const routeSchema = v.array(
  v.object({
    type: v.optional(v.string(), "1"),
    dst: v.optional(v.string()),
    dev: v.optional(v.string()),
    protocol: v.optional(v.string(), "0"),
    metric: v.optional(ipNumber, 0),
    prefsrc: v.optional(v.string()),
  }),
);

/** Route types of rtnetlink(7) by number, as `ip -N` prints them. */
const routeTypes: Readonly<Record<string, string>> = {
  "1": "unicast",
  "2": "local",
  "3": "broadcast",
  "4": "anycast",
  "5": "multicast",
  "6": "blackhole",
  "7": "unreachable",
  "8": "prohibit",
  "9": "throw",
};

/** Parses `ip -N -j -4 route show` or the same with -6. Throws ClusternetError. */
export function parseIpRoutes(text: string, family: Family): SeenRoute[] {
  return parseJson("ip route show", routeSchema, text).flatMap((route) => {
    if (route.dst === undefined) return [];
    const type = routeTypes[route.type] ?? route.type;
    return [
      {
        network: parseDestination(route.dst, family),
        type,
        // The kernel names `lo` for an IPv6 route that leads nowhere.
        ...(route.dev === undefined || type !== "unicast" ? {} : { device: route.dev }),
        protocol: numberOrName(route.protocol),
        metric: route.metric,
        ...(route.prefsrc === undefined ? {} : { src: canonicalAddress(route.prefsrc) }),
      },
    ];
  });
}

function parseDestination(text: string, family: Family): Prefix {
  if (text === "default") return parsePrefix(family === 4 ? "0.0.0.0/0" : "::/0");
  return parsePrefix(text.includes("/") ? text : `${text}/${familyBits(family)}`);
}

function parseJson<T>(command: string, schema: v.GenericSchema<unknown, T>, text: string): T {
  let json: unknown;
  try {
    json = text.trim() === "" ? [] : JSON.parse(text);
  } catch (cause) {
    throw new ClusternetError(`Cannot read the output of "${command}": no JSON`, { cause });
  }
  const result = v.safeParse(schema, json);
  if (result.success) return result.output;
  const [issue] = result.issues;
  throw new ClusternetError(
    `Cannot read the output of "${command}": ${v.getDotPath(issue) ?? "it"} is of another form: ${quote(issue.message)}`,
  );
}

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
function readNumber(text = "", most: number): number | undefined {
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

export interface ReadOptions {
  readonly run: RunCommand;
  readonly interfaceName: string;
  /** Index of the interface when it was last seen: it is found by it when somebody renamed it. */
  readonly index?: number;
  /** Keys by which an interface of another name is known as ours after a restart. */
  readonly ourKeys: ReadonlySet<PublicKey>;
  /** ClusterNets of now and of before, whose routes are looked for. */
  readonly networks: readonly Prefix[];
  /** What was read before: peers that still show so stay the same objects. */
  readonly before?: ReadDump;
  /** Given what is worth keeping for the next reading. */
  readonly remember?: (dump: ReadDump) => void;
  /** Text of /proc/net/unix of the network namespace. */
  readonly readUnixSockets?: () => Promise<string>;
}

/** Reads the host. An interface that is not there is no error. Throws CommandError or ClusternetError. */
export async function readHost(options: ReadOptions): Promise<SeenHost> {
  const { run, networks, interfaceName } = options;
  const [linkText, sockets, ...routeTexts] = await Promise.all([
    run(["ip", "-N", "-j", "-d", "address", "show"]),
    (options.readUnixSockets ?? readOwnUnixSockets)(),
    ...networks.map(({ family, text }) =>
      run(["ip", "-N", "-j", `-${family}`, "route", "show", "table", "main", "exact", text]),
    ),
  ]);
  const links = parseIpLinks(linkText);
  const routes = networks.flatMap(({ family, text }, index) =>
    parseIpRoutes(routeTexts[index] ?? "", family).filter((route) => route.network.text === text),
  );
  const found = await findInterface(options, links, hasListener(sockets, interfaceName));
  return {
    ...found,
    routes,
    loopback: links.find((link) => link.name === "lo")?.addresses ?? [],
    addresses: new Set(links.flatMap((link) => link.addresses)),
  };
}

/**
 * Networks of the main table that routes of ours lead into the interface of this name. What cannot be read, like IPv6
 * on a kernel without it, has none.
 */
export async function readRoutedNetworks(run: RunCommand, interfaceName: string): Promise<readonly Prefix[]> {
  const ofFamily = async (family: Family): Promise<readonly Prefix[]> => {
    const words = `ip -N -j -${family} route show table main proto ${routeProtocol}`;
    try {
      // `ip` leaves the protocol out of what it prints when it was asked for one.
      return parseIpRoutes(await run(words.split(" ")), family)
        .filter(({ device }) => device === interfaceName)
        .map(({ network }) => network);
    } catch (error) {
      if (error instanceof ClusternetError) return [];
      throw error;
    }
  };
  const networks = [...(await ofFamily(4)), ...(await ofFamily(6))];
  return [...new Map(networks.map((network) => [network.text, network])).values()];
}

function readOwnUnixSockets(): Promise<string> {
  return readFile("/proc/self/net/unix", "utf8");
}

/** Whether a wireguard-go of this network namespace listens for an interface of this name. */
export function hasListener(unixSockets: string, interfaceName: string): boolean {
  const end = `/run/wireguard/${interfaceName}.sock`;
  // Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
  return unixSockets
    .split("\n")
    .some((line) => line.endsWith(end) && (Number.parseInt(line.split(" ")[3] ?? "", 16) & 0x10000) !== 0);
}

async function findInterface(
  options: ReadOptions,
  links: readonly IpLink[],
  listening: boolean,
): Promise<Pick<SeenHost, "interface" | "foreignLink">> {
  const { interfaceName, index, ourKeys } = options;
  const named = links.find((link) => link.name === interfaceName);
  if (named !== undefined) {
    return isInterface(named, listening)
      ? { interface: await readInterface(named, options) }
      : { foreignLink: named.kind ?? "no virtual link" };
  }
  // Under another name: by its index, or by its group when it was made since the last reading or before a restart.
  // Either way its key decides. The socket of wireguard-go keeps the old name.
  const renamed = links.filter(
    (link) => isInterface(link, listening) && (link.index === index || link.group === linkGroup),
  );
  for (const link of renamed) {
    const seen = await readInterface(link, options);
    if (seen.publicKey !== undefined && ourKeys.has(seen.publicKey)) return { interface: seen };
  }
  return {};
}

function isInterface(link: IpLink, listening: boolean): boolean {
  return link.kind === "wireguard" || (link.kind === "tun" && listening);
}

async function readInterface(
  link: IpLink,
  { run, interfaceName, before, remember }: ReadOptions,
): Promise<SeenInterface> {
  const userspace = link.kind === "tun";
  const reader = new WgDumpReader(before);
  const argv = ["wg", "show", userspace ? interfaceName : link.name, "dump"];
  reader.push(Buffer.from(await run(argv, { onOutput: (piece) => reader.push(piece) })));
  const dump = reader.finish();
  const peers = SeenPeers.of(dump.peers);
  remember?.(reader.remember(peers));
  return {
    index: link.index,
    name: link.name,
    implementation: userspace ? "userspace" : "kernel",
    group: link.group,
    mtu: link.mtu,
    up: link.up,
    ...dump,
    peers,
  };
}
