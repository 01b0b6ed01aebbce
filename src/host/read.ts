/**
 * Reads what this host shows: the interface, the routes of ClusterNet, the addresses.
 *
 * Only reads. `ip -N` gives numbers where names depend on files under /etc/iproute2. A UAPI socket of wireguard-go
 * is asked only when it belongs to this network namespace and the link is here too: /run/wireguard is shared by the
 * namespaces of a host, so that a socket of our name may lead to another namespace's interface.
 */
import { readFile } from "node:fs/promises";
import * as v from "valibot";
import type { SeenHost, SeenInterface, SeenRoute } from "../core/host-plan.ts";
import { linkGroup, routeProtocol } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { containsPrefix, familyBits, parsePrefix, type Family, type Prefix } from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import { SeenPeers } from "../core/seen-peers.ts";
import { ipNumber } from "../core/underlay.ts";
import { ClusternetError } from "../errors.ts";
import type { RunCommand } from "./command.ts";
import { ipReading } from "./ip-batch.ts";
import { canonicalAddress, readNumber, WgDumpReader, type ReadDump } from "./wg-dump.ts";

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

/** Parses `ip -N -j -d route show` or the same with -6. Throws ClusternetError. */
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
  readonly remember?: (dump: ReadDump, changed: readonly PublicKey[] | undefined) => void;
  /** Text of /proc/net/unix of the network namespace. */
  readonly readUnixSockets?: () => Promise<string>;
}

/** Reads the host. An interface that is not there is no error. Throws CommandError or ClusternetError. */
export async function readHost(options: ReadOptions): Promise<SeenHost> {
  const { run, networks, interfaceName } = options;
  const [linkText, sockets, ...routeTexts] = await Promise.all([
    run(ipReading("address show")),
    (options.readUnixSockets ?? readOwnUnixSockets)(),
    ...networks.map(({ family, text }) => run(ipReading(`route show table main root ${text}`, family))),
  ]);
  const links = parseIpLinks(linkText);
  const asked = new Set(networks.map(({ text }) => text));
  // What is inside of two that were asked for is shown twice, and counts once.
  const isOfFirst = (network: Prefix, text: string): boolean =>
    networks.find((outer) => containsPrefix(outer, network))?.text === text;
  const routes = networks.flatMap(({ family, text }, index) =>
    parseIpRoutes(routeTexts[index] ?? "", family).filter(({ network, protocol }) =>
      asked.has(network.text)
        ? network.text === text
        : protocol === routeProtocol && isOfFirst(network, text),
    ),
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
  remember?.(reader.remember(peers), reader.changed);
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
