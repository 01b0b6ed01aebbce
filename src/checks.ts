/**
 * What a setting must be, wherever it comes from: the command line and the library refuse the same values.
 *
 * Pure. A value that is not of its setting's form is a UsageError, one of the right form that cannot be used a
 * SettingsError; both name the setting by `origin`, which is a flag, a variable or an option of the library.
 * What only the host can tell is not looked at.
 */
import { overlaps, parsePrefix, type Prefix } from "./core/prefix.ts";
import { quote } from "./core/problem.ts";
import { SettingsError, UsageError } from "./errors.ts";

/** Whole numbers, both ends included. */
export interface NumberRange {
  readonly least: number;
  readonly most: number;
}

/** UDP port of WireGuard, unless somebody says otherwise. */
export const defaultListenPort = 7838;

/** Where our Curator keeps what it knows, unless somebody says otherwise. */
export const defaultCuratorDirectory = "/var/lib/clusternet-curator";

/** A timer cannot wait longer: 2^31 - 1 milliseconds. */
const maxTimerSeconds = 2_147_483;

/** What the numbers among the settings can be. */
export const numberRanges = {
  listenPort: { least: 1, most: 65_535 },
  mtu: { least: 576, most: 65_535 },
  keepaliveSeconds: { least: 1, most: 65_535 },
  resyncSeconds: { least: 1, most: maxTimerSeconds },
  timeoutSeconds: { least: 1, most: maxTimerSeconds },
  clockSpeed: { least: 1, most: 1_000 },
} as const satisfies Readonly<Record<string, NumberRange>>;

/** What an interface name must be, to stand after "expected". */
export const interfaceNameForm =
  "1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo";

/** IPv6 asks this of every link; below it the kernel drops the IPv6 routes of the interface. */
const minIpv6Mtu = 1280;

/** Networks that a mesh can never be: this host's own, the link's, groups. */
const neverClusterNet = ["127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::1/128", "fe80::/10", "ff00::/8"];

/** Words that the kernel, or `wg show`, does not take for the name of one interface, and the one there is always. */
const takenNames = ["all", "default", "interfaces", "lo"];

/** True for a name that names one interface, and no file outside the data directory. */
export function isInterfaceName(found: string): boolean {
  return /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$/.test(found) && !takenNames.includes(found);
}

/** True for a text that can be the path of a file or directory. */
export function isPath(found: string): boolean {
  return found !== "" && !found.includes("\0");
}

/** What a number must be, to stand after "expected". */
export function formOfNumber({ least, most }: NumberRange): string {
  return `a whole number from ${least} to ${most}`;
}

/** True for a whole number of the range. */
export function isInRange(found: number, { least, most }: NumberRange): boolean {
  return Number.isInteger(found) && found >= least && found <= most;
}

/** The networks as they are: one of a family at most, one at least, none that must not be routed into a mesh. */
export function checkClusterNets(nets: readonly Prefix[], origin: string): readonly Prefix[] {
  if (nets.length === 0) {
    throw new UsageError(`Cannot use ${origin}: no network was given, expected one at least`);
  }
  for (const family of [4, 6] as const) {
    const same = nets.filter((net) => net.family === family);
    if (same.length > 1) {
      throw new UsageError(
        `Cannot use ${origin} ${same.map((net) => quote(net.text)).join(" and ")}: expected one IPv${family} network at most`,
      );
    }
  }
  for (const net of nets) {
    if (net.length === 0) {
      throw new SettingsError(
        `Cannot use ${origin} ${quote(net.text)}: it is every address, expected a part`,
        {
          hint: "A ClusterNet is routed into the mesh as a whole, so it must leave the underlay out",
        },
      );
    }
    const never = neverClusterNet.map(parsePrefix).find((each) => overlaps(each, net));
    if (never !== undefined) {
      throw new SettingsError(
        `Cannot use ${origin} ${quote(net.text)}: it overlaps ${never.text}, which is never routed into a mesh`,
      );
    }
  }
  return nets;
}

/** An MTU that is not below what the families of ClusterNet need. */
export function checkMtu(mtu: number | "auto", clusterNets: readonly Prefix[], origin: string): void {
  const ipv6 = clusterNets.find((net) => net.family === 6);
  if (mtu === "auto" || ipv6 === undefined || mtu >= minIpv6Mtu) return;
  throw new SettingsError(
    `Cannot use ${origin} "${mtu}": ClusterNet ${ipv6.text} is IPv6, which needs ${minIpv6Mtu} or more`,
  );
}

/** What the library is given and the compiler cannot check. */
export interface CheckedOptions {
  readonly clusterNet: string | Prefix | readonly (string | Prefix)[];
  readonly dataDirectory: string;
  readonly interfaceName?: string;
  readonly listenPort?: number;
  readonly mtu?: number | "auto";
  readonly keepaliveSeconds?: number;
  readonly resyncSeconds?: number;
}

/** The networks of the library's options, all of which are checked. Throws UsageError, SettingsError. */
export function checkOptions(options: CheckedOptions): readonly Prefix[] {
  const { clusterNet, dataDirectory, interfaceName, mtu = "auto" } = options;
  const given: readonly (string | Prefix)[] =
    typeof clusterNet === "string" || "text" in clusterNet ? [clusterNet] : clusterNet;
  // Also what is a Prefix already: one out of `Prefixes` may have host bits.
  const nets = given.map((net) => parsePrefix(typeof net === "string" ? net : net.text));
  const clusterNets = checkClusterNets(nets, "clusterNet");
  if (!isPath(dataDirectory)) {
    throw new UsageError(
      `Cannot use dataDirectory ${quote(dataDirectory)}: expected the path of a directory`,
    );
  }
  if (interfaceName !== undefined && !isInterfaceName(interfaceName)) {
    throw new UsageError(`Cannot use interfaceName ${quote(interfaceName)}: expected ${interfaceNameForm}`);
  }
  for (const name of ["listenPort", "mtu", "keepaliveSeconds", "resyncSeconds"] as const) {
    const found = options[name];
    if (found === undefined || found === "auto" || isInRange(found, numberRanges[name])) continue;
    throw new UsageError(`Cannot use ${name} ${String(found)}: expected ${formOfNumber(numberRanges[name])}`);
  }
  checkMtu(mtu, clusterNets, "mtu");
  return clusterNets;
}
