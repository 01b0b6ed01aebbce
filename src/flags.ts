/**
 * Every command's flags as one table: what the command line is built from, `--help` prints, and the environment
 * is read by.
 *
 * Only the outer form lives here (takes a value, may come twice, is a switch). What a value may be is decided in
 * src/settings.ts, so that a flag and its environment variable cannot be judged differently.
 */
import { UsageError } from "./errors.ts";
import { quote } from "./core/problem.ts";
import type { GivenFlag, GivenFlags } from "./settings.ts";

export interface FlagSpec {
  /** Without dashes. */
  readonly name: string;
  /** What stands for the value in help; absent: a switch. */
  readonly value?: string;
  /** What the bare flag means, when its value may be left out. */
  readonly bare?: string;
  readonly repeatable?: true;
  readonly about: string;
  /** As help shows it. Values themselves default in src/settings.ts. */
  readonly shownDefault?: string;
  /** An environment variable of others that stands in for the flag where flag `beside` is given. */
  readonly fallback?: { readonly variable: string; readonly beside: string };
  /** Part of the contract, not of this version: named, refused and left out of help. */
  readonly later?: string;
}

const dataDir: FlagSpec = {
  name: "data-dir",
  value: "DIR",
  about: "key, configuration and state of this node",
  shownDefault: "/var/lib/clusternet",
};
const interfaceName: FlagSpec = {
  name: "interface",
  value: "NAME",
  about: "WireGuard interface of the mesh",
  shownDefault: "clusternet",
};
const curatorDataDir: FlagSpec = {
  name: "data-dir",
  value: "DIR",
  about: "what the Curator knows",
  shownDefault: "/var/lib/clusternet-curator",
};
const clusterNet: FlagSpec = {
  name: "cluster-net",
  value: "CIDR",
  repeatable: true,
  about: "ClusterNet; once per address family, any value replaces the default",
  shownDefault: "10.192.0.0/11",
};
const insecure: FlagSpec = { name: "insecure", about: "no TLS; only for loopback addresses" };
const insecureAnywhere: FlagSpec = {
  name: "insecure-anywhere",
  about: "with --insecure: allow any address. Who can reach it can change the mesh",
};
const logFlags: readonly FlagSpec[] = [
  { name: "log-format", value: "text|json", about: "form of the log on stderr", shownDefault: "text" },
  {
    name: "log-level",
    value: "LEVEL",
    about: "debug, info, warn or error; what is below is left out",
    shownDefault: "info",
  },
];
/** The credentials of a node; `directory` is where they are when nothing else is said. */
function tlsFlags(directory: string): readonly FlagSpec[] {
  return [
    { name: "ca", value: "FILE", about: "cluster CA", shownDefault: `${directory}/ca.pem` },
    { name: "cert", value: "FILE", about: "node certificate", shownDefault: `${directory}/cert.pem` },
    {
      name: "key",
      value: "FILE",
      about: "key of the node certificate",
      shownDefault: `${directory}/cert-key.pem`,
    },
  ];
}
const credentialsDirectory = "DATA-DIR/credentials";

export const placeFlags: readonly FlagSpec[] = [dataDir, interfaceName];

export const statusFlags: readonly FlagSpec[] = [
  ...placeFlags,
  { name: "json", about: "one JSON object, for programs" },
  { name: "check", about: "exit 3 when there is a problem, no agent runs, or a part of it hangs" },
];

export const runFlags: readonly FlagSpec[] = [
  {
    name: "curator",
    value: "HOST:PORT",
    repeatable: true,
    about: "a Curator of the cluster; at least one; port 7835 when left out; IPv6 in brackets",
  },
  {
    name: "node-id",
    value: "ID",
    about: "this node's ID; needed without TLS",
    shownDefault: "common name of the certificate",
  },
  dataDir,
  interfaceName,
  ...tlsFlags(credentialsDirectory),
  {
    name: "curator-id",
    value: "ID",
    repeatable: true,
    about: "accept only these nodes as Curators",
    shownDefault: "any node of the cluster",
  },
  insecure,
  insecureAnywhere,
  clusterNet,
  {
    name: "listen-port",
    value: "PORT",
    about: "UDP port of WireGuard, also assumed for every peer",
    shownDefault: "7838",
  },
  { name: "pod-prefix", value: "CIDR", repeatable: true, about: "a pod prefix of this node" },
  {
    name: "kubeconfig",
    value: "FILE|in-cluster",
    about: "take pod prefixes from Kubernetes too; in-cluster: as the service account of this pod",
  },
  {
    name: "kubernetes-node",
    value: "NAME",
    about: "with --kubeconfig: the Node object of this node",
    shownDefault: "NODE_NAME of the environment or the host name",
    fallback: { variable: "NODE_NAME", beside: "kubeconfig" },
  },
  {
    name: "external-address",
    value: "ADDR|auto",
    about: "address at which other nodes reach this one; auto: the source address towards the Curator",
    shownDefault: "auto",
  },
  {
    name: "report-status",
    value: "auto|on|off",
    bare: "on",
    about: "report the external address to the Curator; auto: when nobody else does; the bare flag means on",
    shownDefault: "auto",
  },
  {
    name: "mtu",
    value: "N|auto",
    about: "MTU of the interface; auto: that of the underlay less 80",
    shownDefault: "auto",
  },
  {
    name: "wireguard",
    value: "kernel|userspace|auto",
    about:
      "implementation; userspace starts wireguard-go; auto: what is there, else the kernel's when it can",
    shownDefault: "auto",
  },
  { name: "keepalive", value: "SECONDS", about: "PersistentKeepalive for every peer", shownDefault: "off" },
  {
    name: "resync",
    value: "SECONDS",
    about: "how often the host is compared with the wanted mesh",
    shownDefault: "30",
  },
  { name: "once", about: "wait for the full picture, apply, announce, exit" },
  { name: "timeout", value: "SECONDS", about: "with --once: how long it may take", shownDefault: "30" },
  { name: "dry-run", about: "with --once: print file, steps and announcement, change nothing" },
  { name: "listen", value: "HOST:PORT", about: "HTTP", later: "metrics over HTTP" },
  { name: "peer-metrics", about: "per-peer series", later: "metrics over HTTP" },
  ...logFlags,
];

/** Read from the environment alone: no flags, since nobody who runs an agent wants them. */
export const runVariables: readonly FlagSpec[] = [
  {
    name: "clock-speed",
    value: "N",
    about: "for tests: every wait of the agent is N times shorter",
    shownDefault: "1",
  },
];

export const curatorFlags: readonly FlagSpec[] = [
  { name: "listen", value: "HOST:PORT", about: "address to serve on", shownDefault: "127.0.0.1:7835" },
  curatorDataDir,
  {
    name: "store",
    value: "sqlite|memory",
    about: "sqlite: one file in the data directory; memory: forgotten at the end, for tests",
    shownDefault: "sqlite",
  },
  clusterNet,
  ...tlsFlags(credentialsDirectory),
  insecure,
  insecureAnywhere,
  ...logFlags,
];

export const nodeFlags: readonly FlagSpec[] = [curatorDataDir];

export const nodeListFlags: readonly FlagSpec[] = [
  ...nodeFlags,
  { name: "json", about: "one JSON array, for programs" },
];

const caDir: FlagSpec = {
  name: "ca-dir",
  value: "DIR",
  about: "where the cluster CA and its key are; needed",
};

export const pkiInitFlags: readonly FlagSpec[] = [caDir];

export const pkiIssueFlags: readonly FlagSpec[] = [
  caDir,
  { name: "out", value: "DIR", about: "where the node's ca.pem, cert.pem and cert-key.pem go; needed" },
];

/** Prefix of the environment variables of the Curator's commands, so that both can share one environment. */
export const curatorVariables = "CLUSTERNET_CURATOR_";
/** Prefix of the environment variables of all other commands. */
export const agentVariables = "CLUSTERNET_";

/** Name of the environment variable that stands for a flag. */
export function variableOf(spec: FlagSpec, variables: string): string {
  return variables + spec.name.toUpperCase().replaceAll("-", "_");
}

/** Flags as the command line gave them: every occurrence's text, a switch as "true". */
export type Occurrences = ReadonlyMap<string, readonly string[]>;

/**
 * Joins command line and environment: flags win, an empty variable is unset, a repeatable one is split at commas.
 * Throws UsageError for a flag given twice that is not repeatable, and for one that a later version brings.
 */
export function collectFlags(
  specs: readonly FlagSpec[],
  occurrences: Occurrences,
  environment: Readonly<Record<string, string | undefined>>,
  variables: string,
): GivenFlags {
  const given = new Map<string, GivenFlag>();
  for (const spec of specs) {
    const flag = givenFlag(
      spec,
      occurrences.get(spec.name),
      environment[variableOf(spec, variables)],
      variables,
    );
    if (flag === undefined) continue;
    if (spec.later !== undefined) {
      throw new UsageError(
        `Cannot use ${flag.origin}: this version has no ${spec.later}; leave it out (\`clusternet status --json\` is for programs too)`,
      );
    }
    given.set(spec.name, flag);
  }
  for (const { name, fallback } of specs) {
    if (fallback === undefined || given.has(name) || !given.has(fallback.beside)) continue;
    const text = environment[fallback.variable];
    if (text !== undefined && text !== "") given.set(name, { origin: fallback.variable, texts: [text] });
  }
  return given;
}

function givenFlag(
  spec: FlagSpec,
  texts: readonly string[] | undefined,
  variable: string | undefined,
  variables: string,
): GivenFlag | undefined {
  if (texts !== undefined) {
    const origin = `--${spec.name}`;
    if (texts.length > 1 && spec.repeatable !== true) {
      const found = spec.value === undefined ? "" : `, as ${texts.map((text) => quote(text)).join(" and ")}`;
      throw new UsageError(`Cannot use ${origin}: given ${texts.length} times${found}, expected once`);
    }
    return { origin, texts };
  }
  if (variable === undefined || variable === "") return undefined;
  return {
    origin: variableOf(spec, variables),
    texts: spec.repeatable === true ? variable.split(",") : [variable],
  };
}
