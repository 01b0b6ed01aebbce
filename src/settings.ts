/**
 * Settings: flags as given become typed values, or one error that names the flag (or the variable), what was
 * found and what was expected.
 *
 * No file or clock is looked at, and of the process only its directory. A value that is not of its flag's form is
 * a UsageError (exit 64); one of the right form that cannot be used is a SettingsError (exit 78). What only the host
 * can tell (key file, interface, credentials) is found by the commands.
 */
import * as v from "valibot";
import {
  checkClusterNets,
  checkMtu,
  defaultCuratorDirectory,
  defaultListenPort,
  numberRanges,
} from "./checks.ts";
import type { CuratorOptions } from "./commands/curator.ts";
import type { NodeCommandOptions, NodeListOptions } from "./commands/node.ts";
import type { PkiInitOptions, PkiIssueOptions } from "./commands/pki.ts";
import { asNodeId, nodeIdProblem, type NodeId } from "./core/node.ts";
import {
  type Address,
  type Prefix,
  containsAddress,
  parseAddress,
  parsePrefix,
  unusableReason,
} from "./core/prefix.ts";
import { quote } from "./core/problem.ts";
import { SettingsError, UsageError } from "./errors.ts";
import {
  curatorPort,
  hostPort,
  oneOf,
  orWord,
  parseDataDirectory,
  parseDirectory,
  parseFile,
  parseInterfaceName,
  parseKubeconfigPath,
  parseKubernetesNode,
  parseListen,
  parseNodeId,
  parseSwitch,
  text,
  wholeNumber,
  type HostPort,
} from "./flag-values.ts";
import { socketPath } from "./host/files.ts";
import { inCluster } from "./kubernetes/names.ts";
import type { LogSettings } from "./log.ts";
import { credentialsIn, type CredentialFiles } from "./trust/credential-files.ts";

/** A flag as it was given. */
export interface GivenFlag {
  /** As messages name it: `--listen-port`, or `CLUSTERNET_LISTEN_PORT` when it came from the environment. */
  readonly origin: string;
  /** One text, or several of a repeatable flag. A switch is 1, 0, true or false. */
  readonly texts: readonly string[];
}

/** Flags of one command by their names without dashes; what was not given is absent. */
export type GivenFlags = ReadonlyMap<string, GivenFlag>;

/** Where a node keeps its files and which interface it runs: what every command on it needs. */
export interface PlaceSettings {
  readonly dataDirectory: string;
  readonly interfaceName: string;
}

/** Who this node is, and how Curators are known. */
export type Identity =
  /** No TLS; warned of at every start. */
  | {
      readonly kind: "insecure";
      readonly nodeId: NodeId;
      /** Also to Curators on other machines. */
      readonly anywhere: boolean;
    }
  | {
      readonly kind: "tls";
      readonly files: CredentialFiles;
      /** As given: must be that of the certificate, which says it when this is absent. */
      readonly nodeId?: NodeId;
      /** Absent: every node of the cluster may be a Curator. */
      readonly curatorIds?: readonly NodeId[];
    };

/** Where Kubernetes is asked, and which Node is meant. */
export interface KubernetesSettings {
  /** Absolute path, or `in-cluster`. */
  readonly kubeconfig: string;
  /** Absent: the one with the name of this host. */
  readonly node?: string;
}

export interface RunSettings extends PlaceSettings {
  readonly log: LogSettings;
  /** At least one, in the order given; none of them inside ClusterNet. */
  readonly curators: readonly HostPort[];
  /** Given Curators inside ClusterNet: left out, to be reported. */
  readonly unusableCurators: readonly HostPort[];
  readonly identity: Identity;
  /** One per family at most, at least one. */
  readonly clusterNets: readonly Prefix[];
  readonly listenPort: number;
  /** As given. Those outside ClusterNet are still here: reported, not announced. */
  readonly podPrefixes: readonly Prefix[];
  /** Pod prefixes also come from there. */
  readonly kubernetes?: KubernetesSettings;
  readonly externalAddress: Address | "auto";
  readonly reportStatus: "auto" | "on" | "off";
  readonly mtu: number | "auto";
  readonly wireguard: "kernel" | "userspace" | "auto";
  /** Absent: no PersistentKeepalive. */
  readonly keepaliveSeconds?: number;
  readonly resyncSeconds: number;
  /** How many times shorter every wait of the agent is; 1 but for tests. */
  readonly clockSpeed: number;
  /** Present with `--once`. */
  readonly once?: { readonly timeoutSeconds: number; readonly dryRun: boolean };
}

export interface StatusSettings extends PlaceSettings {
  readonly json: boolean;
  /** Exit 3 when there is a problem or no agent runs. */
  readonly check: boolean;
}

export interface CuratorSettings {
  readonly log: LogSettings;
  readonly options: CuratorOptions;
}

/** The network of the cluster, unless `--cluster-net` says otherwise. */
export const defaultClusterNet = "10.192.0.0/11";

/** Where an agent is, unless `--data-dir` and `--interface` say otherwise. */
export const defaultPlace: PlaceSettings = {
  dataDirectory: "/var/lib/clusternet",
  interfaceName: "clusternet",
};

const placeEntries = {
  "data-dir": v.optional(text(parseDataDirectory), defaultPlace.dataDirectory),
  interface: v.optional(text(parseInterfaceName), defaultPlace.interfaceName),
};
const logEntries = {
  "log-format": v.optional(text(oneOf("text", "json")), "text"),
  "log-level": v.optional(text(oneOf("debug", "info", "warn", "error")), "info"),
};
const tlsEntries = {
  ca: v.optional(text(parseFile)),
  cert: v.optional(text(parseFile)),
  key: v.optional(text(parseFile)),
};
const switchEntry = v.optional(text(parseSwitch), "false");
const clusterNetEntries = {
  "cluster-net": v.optional(v.array(text(parsePrefix)), [defaultClusterNet]),
  insecure: switchEntry,
  "insecure-anywhere": switchEntry,
};

const placeSchema = v.object(placeEntries);
const statusSchema = v.object({ ...placeEntries, json: switchEntry, check: switchEntry });

const runSchema = v.object({
  ...placeEntries,
  ...logEntries,
  ...clusterNetEntries,
  curator: v.optional(v.array(text(hostPort(1))), []),
  ...tlsEntries,
  "node-id": v.optional(text(parseNodeId)),
  "curator-id": v.optional(v.array(text(parseNodeId))),
  "listen-port": v.optional(text(wholeNumber(numberRanges.listenPort)), `${defaultListenPort}`),
  "pod-prefix": v.optional(v.array(text(parsePrefix)), []),
  kubeconfig: v.optional(text(orWord(inCluster, parseKubeconfigPath))),
  "kubernetes-node": v.optional(text(parseKubernetesNode)),
  "external-address": v.optional(text(orWord("auto", parseAddress)), "auto"),
  "report-status": v.optional(text(oneOf("auto", "on", "off")), "auto"),
  mtu: v.optional(text(orWord("auto", wholeNumber(numberRanges.mtu))), "auto"),
  wireguard: v.optional(text(oneOf("kernel", "userspace", "auto")), "auto"),
  keepalive: v.optional(text(orWord("off", wholeNumber(numberRanges.keepaliveSeconds))), "off"),
  resync: v.optional(text(wholeNumber(numberRanges.resyncSeconds)), "30"),
  "clock-speed": v.optional(text(wholeNumber(numberRanges.clockSpeed)), "1"),
  once: switchEntry,
  timeout: v.optional(text(wholeNumber(numberRanges.timeoutSeconds)), "30"),
  "dry-run": switchEntry,
});

const curatorSchema = v.object({
  ...logEntries,
  ...clusterNetEntries,
  ...tlsEntries,
  listen: v.optional(text(parseListen), `127.0.0.1:${curatorPort}`),
  "data-dir": v.optional(text(parseDataDirectory), defaultCuratorDirectory),
  store: v.optional(text(oneOf("sqlite", "memory")), "sqlite"),
});

const pkiInitSchema = v.object({ "ca-dir": v.optional(text(parseDirectory)) });
const pkiIssueSchema = v.object({ ...pkiInitSchema.entries, out: v.optional(text(parseDirectory)) });

const nodeSchema = v.object({ "data-dir": curatorSchema.entries["data-dir"] });

const nodeListSchema = v.object({ ...nodeSchema.entries, json: switchEntry });

/** Flags of one command by its schema; the schema's arrays are the repeatable ones. Throws UsageError. */
function parseFlags<S extends v.ObjectSchema<v.ObjectEntries, undefined>>(
  schema: S,
  given: GivenFlags,
): v.InferOutput<S> {
  const input: Record<string, unknown> = {};
  for (const [name, { texts }] of given) {
    const entry = schema.entries[name];
    const many = entry?.type === "optional" && "wrapped" in entry && isArraySchema(entry.wrapped);
    input[name] = many ? texts : texts[0];
  }
  const result = v.safeParse(schema, input, { abortEarly: true });
  if (result.success) return result.output;
  const [issue] = result.issues;
  const [flag, index] = (issue.path ?? []).map((item) => item.key);
  const origin = originOf(given, String(flag));
  const found = given.get(String(flag))?.texts[typeof index === "number" ? index : 0] ?? "";
  throw new UsageError(`Cannot use ${origin} ${quote(found)}: ${issue.message}`);
}

function isArraySchema(schema: unknown): boolean {
  return typeof schema === "object" && schema !== null && "type" in schema && schema.type === "array";
}

/** How a message names a flag: as it was given, else as a flag. */
function originOf(given: GivenFlags, name: string): string {
  return given.get(name)?.origin ?? `--${name}`;
}

/** Settings of `down` and `pubkey`. Throws UsageError, SettingsError. */
export function parsePlaceSettings(given: GivenFlags): PlaceSettings {
  return placeOf(parseFlags(placeSchema, given));
}

/** Settings of `status`. Throws UsageError, SettingsError. */
export function parseStatusSettings(given: GivenFlags): StatusSettings {
  const flags = parseFlags(statusSchema, given);
  return { ...placeOf(flags), json: flags.json, check: flags.check };
}

/** Options of `node list`. Throws UsageError. */
export function parseNodeListSettings(given: GivenFlags): NodeListOptions {
  const { "data-dir": dataDir, json } = parseFlags(nodeListSchema, given);
  return { dataDir, json };
}

/** Options of `node remove` and `node allow`. Throws UsageError. */
export function parseNodeSettings(given: GivenFlags): NodeCommandOptions {
  return { dataDir: parseFlags(nodeSchema, given)["data-dir"] };
}

/** The argument of `node remove` and `node allow`. Throws UsageError. */
export function parseNodeArgument(found: string): NodeId {
  const id = asNodeId(found);
  if (id === undefined) throw new UsageError(nodeIdProblem(found));
  return id;
}

/** Options of `pki init`. Throws UsageError. */
export function parsePkiInitSettings(given: GivenFlags): PkiInitOptions {
  return { caDir: needed(parseFlags(pkiInitSchema, given), "ca-dir", "pki init") };
}

/** Options of `pki issue`. Throws UsageError. */
export function parsePkiIssueSettings(given: GivenFlags): PkiIssueOptions {
  const flags = parseFlags(pkiIssueSchema, given);
  return { caDir: needed(flags, "ca-dir", "pki issue"), out: needed(flags, "out", "pki issue") };
}

/** The argument of `pki issue`: a node ID that is also the name of a host. Throws UsageError. */
export function parsePkiArgument(found: string): NodeId {
  const id = /^[a-z0-9][a-z0-9.-]{0,62}$/.test(found) ? asNodeId(found) : undefined;
  if (id !== undefined) return id;
  throw new UsageError(
    `Cannot issue a certificate for node ${quote(found)}: expected 1 to 63 of a-z, 0-9, . and -, starting with a letter or digit`,
  );
}

function needed<Name extends string>(
  flags: { readonly [Key in Name]?: string | undefined },
  name: Name,
  command: string,
): string {
  const value = flags[name];
  if (value !== undefined) return value;
  throw new UsageError(
    `Cannot run \`clusternet ${command}\` without --${name}: none was given, expected DIR`,
  );
}

/** Settings of `curator`. Throws UsageError, SettingsError. */
export function parseCuratorSettings(given: GivenFlags): CuratorSettings {
  const flags = parseFlags(curatorSchema, given);
  if (flags.insecure) {
    refuseTlsFlags(given);
    if (!flags["insecure-anywhere"]) requireLoopback([flags.listen], given, "listen");
  }
  const clusterNets = checkClusterNets(flags["cluster-net"], originOf(given, "cluster-net"));
  return {
    log: { format: flags["log-format"], level: flags["log-level"] },
    options: {
      listen: { host: flags.listen.host, port: flags.listen.port },
      dataDir: flags["data-dir"],
      store: flags.store,
      clusterNets,
      ...(flags.insecure ? {} : { credentials: credentialFiles(flags, flags["data-dir"]) }),
      insecureAnywhere: flags["insecure-anywhere"],
    },
  };
}

/** Settings of `run`. Throws UsageError, SettingsError. */
export function parseRunSettings(given: GivenFlags): RunSettings {
  const flags = parseFlags(runSchema, given);
  if (flags.curator.length === 0) {
    throw new UsageError("Cannot run without --curator: none was given, expected at least one HOST:PORT");
  }
  const identity = identityOf(flags, given);
  for (const name of ["dry-run", "timeout"]) {
    if (!flags.once && (name === "timeout" ? given.has(name) : flags["dry-run"])) {
      throw new UsageError(
        `Cannot use ${originOf(given, name)} without --once: \`run\` goes on until it is stopped`,
      );
    }
  }
  const kubernetes = kubernetesOf(flags, given);
  // All wrong usage is found by here: what cannot be used comes after what is not understood.
  const clusterNets = checkClusterNets(flags["cluster-net"], originOf(given, "cluster-net"));
  checkExternalAddress(flags["external-address"], clusterNets, given);
  checkMtu(flags.mtu, clusterNets, originOf(given, "mtu"));
  return {
    ...placeOf(flags),
    ...chooseCurators(flags.curator, clusterNets),
    log: { format: flags["log-format"], level: flags["log-level"] },
    identity,
    clusterNets,
    listenPort: flags["listen-port"],
    podPrefixes: flags["pod-prefix"],
    ...kubernetes,
    externalAddress: flags["external-address"],
    reportStatus: flags["report-status"],
    mtu: flags.mtu,
    wireguard: flags.wireguard,
    ...(flags.keepalive === "off" ? {} : { keepaliveSeconds: flags.keepalive }),
    resyncSeconds: flags.resync,
    clockSpeed: flags["clock-speed"],
    ...(flags.once ? { once: { timeoutSeconds: flags.timeout, dryRun: flags["dry-run"] } } : {}),
  };
}

function kubernetesOf(
  { kubeconfig, "kubernetes-node": node }: v.InferOutput<typeof runSchema>,
  given: GivenFlags,
): Pick<RunSettings, "kubernetes"> {
  if (kubeconfig !== undefined) {
    return { kubernetes: { kubeconfig, ...(node === undefined ? {} : { node }) } };
  }
  if (node === undefined) return {};
  throw new UsageError(
    `Cannot use ${originOf(given, "kubernetes-node")} without --kubeconfig: nothing says where Kubernetes is`,
  );
}

function placeOf(flags: v.InferOutput<typeof placeSchema>): PlaceSettings {
  // The socket's path is what limits the length of a data directory's: better said now than when it is bound.
  socketPath(flags["data-dir"], flags.interface);
  return { dataDirectory: flags["data-dir"], interfaceName: flags.interface };
}

function identityOf(flags: v.InferOutput<typeof runSchema>, given: GivenFlags): Identity {
  const nodeId = flags["node-id"];
  if (flags.insecure) {
    refuseTlsFlags(given);
    if (nodeId === undefined) {
      throw new UsageError("Cannot run without --node-id: with --insecure no certificate names this node");
    }
    if (!flags["insecure-anywhere"]) requireLoopback(flags.curator, given, "curator");
    return { kind: "insecure", nodeId, anywhere: flags["insecure-anywhere"] };
  }
  const curatorIds = flags["curator-id"];
  return {
    kind: "tls",
    files: credentialFiles(flags, flags["data-dir"]),
    ...(nodeId === undefined ? {} : { nodeId }),
    ...(curatorIds === undefined ? {} : { curatorIds }),
  };
}

/** Where the credentials are: as given, else in the data directory. */
function credentialFiles(
  given: { readonly [Name in keyof CredentialFiles]?: string | undefined },
  dataDirectory: string,
): CredentialFiles {
  const inside = credentialsIn(dataDirectory);
  return { ca: given.ca ?? inside.ca, cert: given.cert ?? inside.cert, key: given.key ?? inside.key };
}

/** Whoever gives credentials wants them used. */
function refuseTlsFlags(given: GivenFlags): void {
  for (const name of ["ca", "cert", "key", "curator-id"]) {
    const flag = given.get(name);
    if (flag !== undefined)
      throw new UsageError(`Cannot use ${flag.origin} with --insecure: there is no TLS then`);
  }
}

function requireLoopback(hosts: readonly HostPort[], given: GivenFlags, name: string): void {
  const loopback = [parsePrefix("127.0.0.0/8"), parsePrefix("::1/128")];
  for (const host of hosts) {
    const { address } = host;
    if (address !== undefined && loopback.some((network) => containsAddress(network, address))) continue;
    throw new UsageError(
      `Cannot use ${originOf(given, name)} ${quote(host.text)} with --insecure: expected an address in 127.0.0.0/8 ` +
        "or ::1 (--insecure-anywhere allows any)",
    );
  }
}

function checkExternalAddress(
  address: Address | "auto",
  clusterNets: readonly Prefix[],
  given: GivenFlags,
): void {
  if (address === "auto") return;
  const inside = clusterNets.find((net) => containsAddress(net, address));
  const reason = inside === undefined ? unusableReason(address) : `it is inside ClusterNet ${inside.text}`;
  if (reason === undefined) return;
  throw new SettingsError(
    `Cannot use ${originOf(given, "external-address")} ${quote(address.text)}: ${reason}`,
    { hint: "Give the address at which other nodes reach this one outside the mesh" },
  );
}

/** A Curator inside ClusterNet would be reached through the mesh that it describes, so it is left out. */
function chooseCurators(
  all: readonly HostPort[],
  clusterNets: readonly Prefix[],
): Pick<RunSettings, "curators" | "unusableCurators"> {
  const isInside = ({ address }: HostPort): boolean =>
    address !== undefined && clusterNets.some((net) => containsAddress(net, address));
  const distinct = all.filter((each, index) => all.findIndex(({ text }) => text === each.text) === index);
  const curators = distinct.filter((each) => !isInside(each));
  const unusableCurators = distinct.filter(isInside);
  if (curators.length === 0) {
    throw new SettingsError(
      `Cannot use Curator ${unusableCurators.map(({ text }) => quote(text)).join(", ")}: inside ClusterNet`,
      { hint: "Give an address outside ClusterNet: the way to the Curator must not lead through the mesh" },
    );
  }
  return { curators, unusableCurators };
}
