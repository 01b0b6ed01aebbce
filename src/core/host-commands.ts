/**
 * The commands of a step: what `wg` and `ip` are called with, as data.
 *
 * Every value is an argument of its own and comes from parsed types, never from foreign text. A key is named by its
 * file alone. The peers of a large change are spread over several commands; see `maxArgvBytes`.
 */
import { guardMetric, linkGroup, routeProtocol, type PeerChange, type Step } from "./host-state.ts";
import { hostPrefix, type Prefix } from "./prefix.ts";

/** What a command needs to know beside the step. */
export interface CommandContext {
  readonly keyFile: string;
  readonly configFile: string;
  readonly implementation: "kernel" | "userspace";
  /** This `wg` knows `+` before an allowed IP (1.0.20250521 and later). */
  readonly plusAllowedIps: boolean;
}

/**
 * Bytes of arguments of one command: about 4,000 peers. Linux takes a quarter of the stack limit for arguments, a pointer
 * to each and the environment together, 2 MiB by default, and 128 KiB (MAX_ARG_STRLEN) in a single argument; the largest
 * single one here is 1,024 IPv6 prefixes, 45 KiB. Under a lower stack limit such a command is not even started, and
 * halved like one that fails (host/apply.ts).
 */
const maxArgvBytes = 512 * 1024;

/** The commands that carry the step out, in order. */
export function stepCommands(step: Step, context: CommandContext): string[][] {
  switch (step.kind) {
    case "add-link":
      return context.implementation === "kernel"
        ? [ip("link add dev", step.name, ...settings(linkGroup, step.mtu), "type", "wireguard")]
        : [["wireguard-go", step.name], ip("link set dev", step.name, ...settings(linkGroup, step.mtu))];
    case "rename-link":
      // Linux before 6.2 renames a link only while it is down.
      return [ip("link set dev", step.from, "down"), ip("link set dev", step.from, "name", step.to)];
    case "delete-link":
      return [ip("link delete dev", step.name)];
    case "set-link": {
      const state = step.up === undefined ? [] : [step.up ? "up" : "down"];
      return [ip("link set dev", step.name, ...settings(step.group, step.mtu), ...state)];
    }
    case "set-device": {
      // Two commands: a port that is taken must not keep the key from being set.
      const { name, key, listenPort } = step;
      return [
        ...(key ? [["wg", "set", name, "private-key", context.keyFile]] : []),
        ...(listenPort === undefined ? [] : [["wg", "set", name, "listen-port", String(listenPort)]]),
      ];
    }
    case "sync-conf":
      return [["wg", "syncconf", step.name, context.configFile]];
    case "set-peers":
      return peerChunks(step.changes, context).map((changes) => peersCommand(step.name, changes, context));
    case "add-loopback":
      // Without nodad an IPv6 address cannot be a route's source until a worker of the kernel has looked at it.
      return [
        ip(
          "address add",
          hostPrefix(step.address).text,
          "dev",
          "lo",
          ...(step.address.family === 6 ? ["nodad"] : []),
        ),
      ];
    case "remove-loopback":
      return [ip("address delete", hostPrefix(step.address).text, "dev", "lo")];
    case "set-route": {
      const src = step.src === undefined ? [] : ["src", step.src.text];
      return [
        ipRoute(step.network, step.replace ? "replace" : "add", "dev", step.device, ...protocol, ...src),
      ];
    }
    case "delete-route": {
      const device = step.device === undefined ? [] : ["dev", step.device];
      return [ipRoute(step.network, "delete", ...device, ...protocol, "metric", String(step.metric))];
    }
    case "add-guard":
      return [ipRoute(step.network, "add unreachable", ...protocol, "metric", String(guardMetric))];
    case "delete-guard":
      return [ipRoute(step.network, "delete unreachable", ...protocol, "metric", String(guardMetric))];
  }
  return step satisfies never;
}

const protocol = ["proto", String(routeProtocol)] as const;

function ip(verb: string, ...words: string[]): string[] {
  return ["ip", ...verb.split(" "), ...words];
}

function ipRoute(network: Prefix, verb: string, ...words: string[]): string[] {
  return ip(`-${network.family} route ${verb}`, network.text, ...words);
}

function settings(group: number | undefined, mtu: number | undefined): string[] {
  return [
    ...(group === undefined ? [] : ["group", String(group)]),
    ...(mtu === undefined ? [] : ["mtu", String(mtu)]),
  ];
}

/** One `wg set` with these changes of peers. */
export function peersCommand(
  name: string,
  changes: readonly PeerChange[],
  context: CommandContext,
): string[] {
  return ["wg", "set", name, ...changes.flatMap((change) => peerWords(change, context))];
}

function peerWords(change: PeerChange, { plusAllowedIps }: CommandContext): string[] {
  if (change.remove === true) return ["peer", change.publicKey, "remove"];
  const allowedIps =
    plusAllowedIps && change.addAllowedIps !== undefined
      ? change.addAllowedIps.map((text) => `+${text}`)
      : change.allowedIps;
  const words = ["peer", change.publicKey];
  // /dev/null stands for no key at all, as wg(8) says.
  if (change.clearPresharedKey === true) words.push("preshared-key", "/dev/null");
  if (change.endpoint !== undefined) words.push("endpoint", change.endpoint);
  if (change.keepaliveSeconds !== undefined) {
    words.push("persistent-keepalive", String(change.keepaliveSeconds));
  }
  if (allowedIps !== undefined) words.push("allowed-ips", allowedIps.join(","));
  return words;
}

/** The changes in their order, in portions whose command stays below `maxArgvBytes`. */
export function peerChunks(changes: readonly PeerChange[], context: CommandContext): PeerChange[][] {
  const chunks: PeerChange[][] = [];
  let room = 0;
  for (const change of changes) {
    const size = peerWords(change, context).reduce((sum, word) => sum + word.length + 1, 0);
    const last = chunks.at(-1);
    if (last === undefined || size > room) {
      chunks.push([change]);
      room = maxArgvBytes - size;
    } else {
      last.push(change);
      room -= size;
    }
  }
  return chunks;
}

/** Stands for the files and the implementation of a host that nobody asked about. */
const shownContext: CommandContext = {
  keyFile: "private.key",
  configFile: "<interface>.conf",
  implementation: "kernel",
  plusAllowedIps: false,
};

/** The step as lines for people, one per command, as `wg` and `ip` would be typed. Names the key's file, never shows a key. */
export function renderStep(step: Step, context: CommandContext = shownContext): string {
  return stepCommands(step, context)
    .map((argv) => argv.map((word) => (word === "" ? '""' : word)).join(" "))
    .join("\n");
}
