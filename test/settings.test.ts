/** Flags as given to typed settings: what each may be, where it came from, and what cannot be used (64 and 78). */
import { expect, test } from "bun:test";
import { resolve } from "node:path";
import type { NodeId } from "../src/core/node.ts";
import { parseAddress } from "../src/core/prefix.ts";
import { ClusternetError } from "../src/errors.ts";
import {
  type FlagSpec,
  agentVariables,
  collectFlags,
  curatorFlags,
  curatorVariables,
  placeFlags,
  runFlags,
  runVariables,
} from "../src/flags.ts";
import {
  type GivenFlags,
  type Identity,
  parseCuratorSettings,
  parseNodeSettings,
  parsePkiArgument,
  parsePlaceSettings,
  parseRunSettings,
  parseStatusSettings,
} from "../src/settings.ts";

type Flags = Readonly<Record<string, string | readonly string[]>>;

function occurrences(flags: Flags): Map<string, readonly string[]> {
  return new Map(
    Object.entries(flags).map(([name, texts]) => [name, typeof texts === "string" ? [texts] : texts]),
  );
}

function run(flags: Flags, environment: Record<string, string> = {}) {
  const all = [...runFlags, ...runVariables];
  return parseRunSettings(collectFlags(all, occurrences(flags), environment, agentVariables));
}

/** "STATUS message (hint)" of what is thrown, or "accepted". */
function verdict(parse: () => unknown): string {
  try {
    parse();
    return "accepted";
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    return `${error.exit} ${error.message}`;
  }
}

const least: Flags = { insecure: "true", "node-id": "a", curator: "127.0.0.1:9000" };

test("parseRunSettings() fills in every default", () => {
  const settings = run(least);
  expect(settings).toEqual({
    dataDirectory: "/var/lib/clusternet",
    interfaceName: "clusternet",
    log: { format: "text", level: "info" },
    curators: [{ host: "127.0.0.1", address: parseAddress("127.0.0.1"), port: 9000, text: "127.0.0.1:9000" }],
    unusableCurators: [],
    identity: { kind: "insecure", nodeId: "a" as NodeId, anywhere: false },
    clusterNets: settings.clusterNets,
    listenPort: 7838,
    podPrefixes: [],
    externalAddress: "auto",
    reportStatus: "auto",
    mtu: "auto",
    wireguard: "auto",
    resyncSeconds: 30,
    clockSpeed: 1,
  });
  expect(settings.clusterNets.map(({ text }) => text)).toEqual(["10.192.0.0/11"]);
});

const inside = (directory: string) => ({
  ca: `${directory}/credentials/ca.pem`,
  cert: `${directory}/credentials/cert.pem`,
  key: `${directory}/credentials/cert-key.pem`,
});

test.each<{ flags: Flags; want: Identity }>([
  { flags: {}, want: { kind: "tls", files: inside("/var/lib/clusternet") } },
  { flags: { "data-dir": "d", insecure: "false" }, want: { kind: "tls", files: inside(resolve("d")) } },
  {
    flags: { ca: "x/ca", cert: "/c.pem", key: "k", "node-id": "a", "curator-id": ["c1", "c2"] },
    want: {
      kind: "tls",
      files: { ca: "x/ca", cert: "/c.pem", key: "k" },
      nodeId: "a" as NodeId,
      curatorIds: ["c1" as NodeId, "c2" as NodeId],
    },
  },
  {
    flags: { key: "k", curator: "192.0.2.1" },
    want: { kind: "tls", files: { ...inside("/var/lib/clusternet"), key: "k" } },
  },
])("parseRunSettings() uses TLS unless told otherwise: $flags", ({ flags, want }) => {
  expect(run({ curator: "192.0.2.1", ...flags }).identity).toEqual(want);
});

test("parseRunSettings() splits the accepted Curators of the environment at commas", () => {
  const { identity } = run(
    { curator: "192.0.2.1" },
    { CLUSTERNET_CURATOR_ID: "c1,c2", CLUSTERNET_CA: "/ca" },
  );
  expect(identity).toEqual({
    kind: "tls",
    files: { ...inside("/var/lib/clusternet"), ca: "/ca" },
    curatorIds: ["c1" as NodeId, "c2" as NodeId],
  });
});

test("parseRunSettings() takes every flag", () => {
  const settings = run({
    ...least,
    "data-dir": "data",
    interface: "mesh_0.A-",
    curator: ["localhost", "[2001:DB8::0:1]:7000", "[::1]", "curator.example.:1"],
    "insecure-anywhere": "true",
    "cluster-net": ["fd00::/48", "10.0.0.0/8"],
    "listen-port": "1",
    "pod-prefix": ["10.1.0.0/24", "192.168.0.0/16"],
    "external-address": "2001:DB8::2",
    "report-status": "on",
    mtu: "1280",
    wireguard: "userspace",
    keepalive: "25",
    resync: "2",
    "clock-speed": "1000",
    once: "true",
    timeout: "5",
    "dry-run": "true",
    "log-format": "json",
    "log-level": "debug",
  });
  expect({
    ...settings,
    curators: settings.curators.map(({ host, port, text }) => ({ host, port, text })),
    clusterNets: settings.clusterNets.map(({ text }) => text),
    podPrefixes: settings.podPrefixes.map(({ text }) => text),
    externalAddress: settings.externalAddress === "auto" ? "auto" : settings.externalAddress.text,
  }).toEqual({
    dataDirectory: resolve("data"),
    interfaceName: "mesh_0.A-",
    log: { format: "json", level: "debug" },
    curators: [
      { host: "localhost", port: 7835, text: "localhost:7835" },
      { host: "2001:db8::1", port: 7000, text: "[2001:db8::1]:7000" },
      { host: "::1", port: 7835, text: "[::1]:7835" },
      { host: "curator.example.", port: 1, text: "curator.example.:1" },
    ],
    unusableCurators: [],
    identity: { kind: "insecure", nodeId: "a" as NodeId, anywhere: true },
    clusterNets: ["fd00::/48", "10.0.0.0/8"],
    listenPort: 1,
    podPrefixes: ["10.1.0.0/24", "192.168.0.0/16"],
    externalAddress: "2001:db8::2",
    reportStatus: "on",
    mtu: 1280,
    wireguard: "userspace",
    keepaliveSeconds: 25,
    resyncSeconds: 2,
    clockSpeed: 1_000,
    once: { timeoutSeconds: 5, dryRun: true },
  });
});

const interfaceForm =
  "expected 1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo";
const hostPortForm = "expected HOST:PORT, with an IPv6 address in brackets";

interface FlagCase {
  readonly flags: Flags;
  readonly want: string;
}

const flagCases: readonly FlagCase[] = [
  // CASES 31: every name that the kernel or a shell would trip over.
  ...[
    "x".repeat(16),
    "a/b",
    "a b",
    ".",
    "..",
    "",
    "all",
    "default",
    "interfaces",
    "lo",
    "-x",
    "a\n",
    "ä",
  ].map((name) => ({
    flags: { interface: name },
    want: `64 Cannot use --interface ${JSON.stringify(name).replace("ä", "\\u{e4}").replace("\\n", "\\u{a}")}: ${interfaceForm}`,
  })),
  { flags: { interface: "x".repeat(15) }, want: "accepted" },
  { flags: { interface: "0" }, want: "accepted" },
  { flags: { "data-dir": "" }, want: '64 Cannot use --data-dir "": expected the path of a directory' },
  {
    flags: { "data-dir": `/${"d".repeat(90)}`, interface: "mesh" },
    want: "accepted",
  },
  {
    flags: { "data-dir": `/${"d".repeat(96)}`, interface: "meshmesh" },
    want: `78 Cannot use data directory "/${"d".repeat(96)}": the socket path in it has 111 bytes, expected at most 107`,
  },
  {
    flags: { "node-id": "" },
    want: '64 Cannot use --node-id "": expected 1 to 253 printable ASCII characters without spaces',
  },
  {
    flags: { "node-id": "a b" },
    want: '64 Cannot use --node-id "a b": expected 1 to 253 printable ASCII characters without spaces',
  },
  {
    flags: { curator: "127.0.0.1:0" },
    want: '64 Cannot use --curator "127.0.0.1:0": port is "0", expected 1 to 65535',
  },
  {
    flags: { curator: "127.0.0.1:65536" },
    want: '64 Cannot use --curator "127.0.0.1:65536": port is "65536", expected 1 to 65535',
  },
  {
    flags: { curator: "127.0.0.1:" },
    want: '64 Cannot use --curator "127.0.0.1:": port is "", expected 1 to 65535',
  },
  {
    flags: { curator: "127.0.0.1:+80" },
    want: '64 Cannot use --curator "127.0.0.1:+80": port is "+80", expected 1 to 65535',
  },
  {
    flags: { curator: "127.0.0.1:080" },
    want: '64 Cannot use --curator "127.0.0.1:080": port is "080", expected 1 to 65535',
  },
  {
    flags: { curator: ["127.0.0.1", "::1"] },
    want: `64 Cannot use --curator "::1": ${hostPortForm} (write [::1]:7835)`,
  },
  { flags: { curator: "[::1]x" }, want: `64 Cannot use --curator "[::1]x": ${hostPortForm}` },
  {
    flags: { curator: "" },
    want: '64 Cannot use --curator "": host is "", expected a host name or an IP address',
  },
  {
    flags: { curator: ":7835" },
    want: '64 Cannot use --curator ":7835": host is "", expected a host name or an IP address',
  },
  {
    flags: { curator: "1.2.3" },
    want: '64 Cannot use --curator "1.2.3": host is "1.2.3", expected a host name or an IP address',
  },
  {
    flags: { curator: "256.0.0.1" },
    want: '64 Cannot use --curator "256.0.0.1": host is "256.0.0.1", expected a host name or an IP address',
  },
  {
    flags: { curator: "a b:1" },
    want: '64 Cannot use --curator "a b:1": host is "a b", expected a host name or an IP address',
  },
  {
    flags: { curator: "http://x" },
    want: '64 Cannot use --curator "http://x": port is "//x", expected 1 to 65535',
  },
  {
    flags: { curator: "[127.0.0.1]" },
    want: '64 Cannot use --curator "[127.0.0.1]": host is "127.0.0.1", expected an IPv6 address in the brackets',
  },
  // Only what is written as a loopback address is one: a name can lead anywhere.
  ...[
    "192.0.2.1:7835",
    "localhost:7835",
    "[2001:db8::1]:7835",
    "[::ffff:127.0.0.1]:7835",
    "128.0.0.1:7835",
  ].map((curator) => ({
    flags: { curator: ["127.0.0.1", curator] },
    want: `64 Cannot use --curator "${curator}" with --insecure: expected an address in 127.0.0.0/8 or ::1 (--insecure-anywhere allows any)`,
  })),
  { flags: { curator: ["127.255.255.254", "[0:0:0:0:0:0:0:1]"] }, want: "accepted" },
  {
    flags: { curator: "10.193.0.1", "insecure-anywhere": "true" },
    want: '78 Cannot use Curator "10.193.0.1:7835": inside ClusterNet',
  },
  { flags: { "cluster-net": "10.0.0.1/8" }, want: "64 Cannot use --cluster-net" },
  { flags: { "cluster-net": "10.0.0.0" }, want: "64 Cannot use --cluster-net" },
  {
    flags: { "cluster-net": ["10.0.0.0/8", "10.192.0.0/11"] },
    want: '64 Cannot use --cluster-net "10.0.0.0/8" and "10.192.0.0/11": expected one IPv4 network at most',
  },
  {
    flags: { "cluster-net": "0.0.0.0/0" },
    want: '78 Cannot use --cluster-net "0.0.0.0/0": it is every address, expected a part',
  },
  {
    flags: { "cluster-net": "::/0" },
    want: '78 Cannot use --cluster-net "::/0": it is every address, expected a part',
  },
  {
    flags: { "cluster-net": "126.0.0.0/7" },
    want: '78 Cannot use --cluster-net "126.0.0.0/7": it overlaps 127.0.0.0/8, which is never routed into a mesh',
  },
  {
    flags: { "cluster-net": "fe80::/64" },
    want: '78 Cannot use --cluster-net "fe80::/64": it overlaps fe80::/10, which is never routed into a mesh',
  },
  ...["0", "65536", "-1", "7838x", "", "1e3", "07838", " 7838"].map((port) => ({
    flags: { "listen-port": port },
    want: `64 Cannot use --listen-port "${port}": expected a whole number from 1 to 65535`,
  })),
  { flags: { "pod-prefix": ["10.192.1.0/24", "10.192.6.0/33"] }, want: "64 Cannot use --pod-prefix" },
  { flags: { "pod-prefix": "10.192.1.1/24" }, want: "64 Cannot use --pod-prefix" },
  { flags: { "pod-prefix": "192.168.1.0/24" }, want: "accepted" },
  { flags: { "external-address": "nx.invalid" }, want: "64 Cannot use --external-address" },
  { flags: { "external-address": "" }, want: "64 Cannot use --external-address" },
  { flags: { "external-address": "192.0.2.1/32" }, want: "64 Cannot use --external-address" },
  {
    // CASES 18.
    flags: { "external-address": "10.192.1.1" },
    want: '78 Cannot use --external-address "10.192.1.1": it is inside ClusterNet 10.192.0.0/11',
  },
  ...[
    ["0.0.0.0", "it is the unspecified address"],
    ["127.0.0.1", "it is a loopback address"],
    ["169.254.1.1", "it is a link-local address"],
    ["224.0.0.1", "it is a multicast address"],
    ["255.255.255.255", "it is the broadcast address"],
    ["::", "it is the unspecified address"],
    ["::1", "it is the loopback address"],
    ["fe80::1", "it is a link-local address"],
    ["ff02::1", "it is a multicast address"],
    ["::ffff:192.0.2.1", "it is an IPv4-mapped address"],
  ].map(([address = "", reason]) => ({
    flags: { "external-address": address },
    want: `78 Cannot use --external-address "${address}": ${reason}`,
  })),
  // What is not understood is said before what cannot be used.
  {
    flags: { "external-address": "10.192.1.1", "kubernetes-node": "n1" },
    want: "64 Cannot use --kubernetes-node without --kubeconfig: nothing says where Kubernetes is",
  },
  {
    flags: { "cluster-net": ["0.0.0.0/0"], "dry-run": "true" },
    want: "64 Cannot use --dry-run without --once: `run` goes on until it is stopped",
  },
  {
    flags: { "report-status": "maybe" },
    want: '64 Cannot use --report-status "maybe": expected auto, on or off',
  },
  ...["575", "65536", "large", "1420.5"].map((mtu) => ({
    flags: { mtu },
    want: `64 Cannot use --mtu "${mtu}": expected a whole number from 576 to 65535`,
  })),
  { flags: { mtu: "576" }, want: "accepted" },
  {
    flags: { mtu: "1279", "cluster-net": "fd00::/48" },
    want: '78 Cannot use --mtu "1279": ClusterNet fd00::/48 is IPv6, which needs 1280 or more',
  },
  {
    flags: { wireguard: "Kernel" },
    want: '64 Cannot use --wireguard "Kernel": expected kernel, userspace or auto',
  },
  {
    flags: { keepalive: "0" },
    want: '64 Cannot use --keepalive "0": expected a whole number from 1 to 65535',
  },
  {
    flags: { keepalive: "65536" },
    want: '64 Cannot use --keepalive "65536": expected a whole number from 1 to 65535',
  },
  { flags: { keepalive: "off" }, want: "accepted" },
  { flags: { resync: "0" }, want: '64 Cannot use --resync "0": expected a whole number from 1 to 2147483' },
  {
    flags: { once: "true", timeout: "0" },
    want: '64 Cannot use --timeout "0": expected a whole number from 1 to 2147483',
  },
  {
    flags: { timeout: "5" },
    want: "64 Cannot use --timeout without --once: `run` goes on until it is stopped",
  },
  {
    flags: { "dry-run": "true" },
    want: "64 Cannot use --dry-run without --once: `run` goes on until it is stopped",
  },
  { flags: { "log-format": "xml" }, want: '64 Cannot use --log-format "xml": expected text or json' },
  {
    flags: { "log-level": "trace" },
    want: '64 Cannot use --log-level "trace": expected debug, info, warn or error',
  },
  {
    flags: { interface: ["a", "b"] },
    want: '64 Cannot use --interface: given 2 times, as "a" and "b", expected once',
  },
  { flags: { once: ["true", "true"] }, want: "64 Cannot use --once: given 2 times, expected once" },
];

test.each(flagCases.map((each) => ({ ...each, name: JSON.stringify(each.flags) })))(
  "parseRunSettings() judges $name",
  ({ flags, want }) => {
    const found = verdict(() => run({ ...least, ...flags }));
    // A message of the parsers of addresses and prefixes is theirs; here it counts which flag it names.
    if (/^\d+ Cannot use --[a-z-]+( "[^"]*": it is)?$/.test(want)) expect(found).toStartWith(want);
    else expect(found).toBe(want);
    expect(found).not.toContain("\n");
  },
);

test.each<FlagCase & { name: string }>([
  {
    name: "no Curator",
    flags: { insecure: "true", "node-id": "a" },
    want: "64 Cannot run without --curator: none was given, expected at least one HOST:PORT",
  },
  ...["ca", "cert", "key", "curator-id"].map((name) => ({
    name: `--${name} with --insecure`,
    flags: { ...least, [name]: "x" },
    want: `64 Cannot use --${name} with --insecure: there is no TLS then`,
  })),
  {
    name: "an empty path",
    flags: { curator: "127.0.0.1", cert: "" },
    want: '64 Cannot use --cert "": expected the path of a file',
  },
  {
    name: "a Curator's ID that is none",
    flags: { curator: "127.0.0.1", "curator-id": ["a", "b c"] },
    want: '64 Cannot use --curator-id "b c": expected 1 to 253 printable ASCII characters without spaces',
  },
  {
    name: "no node ID",
    flags: { insecure: "true", curator: "127.0.0.1" },
    want: "64 Cannot run without --node-id: with --insecure no certificate names this node",
  },
])("parseRunSettings() refuses $name", ({ flags, want }) => {
  expect(verdict(() => run(flags))).toBe(want);
});

test("parseRunSettings() names the masked prefix when host bits are set", () => {
  expect(verdict(() => run({ ...least, "pod-prefix": "10.192.1.7/24" }))).toContain("10.192.1.0/24");
});

test("parseRunSettings() leaves a Curator inside ClusterNet out while there is another", () => {
  const settings = run({
    ...least,
    "insecure-anywhere": "true",
    curator: ["10.193.0.1", "192.0.2.1", "192.0.2.1:7835"],
  });
  expect([
    settings.curators.map(({ text }) => text),
    settings.unusableCurators.map(({ text }) => text),
  ]).toEqual([["192.0.2.1:7835"], ["10.193.0.1:7835"]]);
});

const later = runFlags.filter(({ later }) => later !== undefined);

test("flags of later versions are those that the contract names", () => {
  expect(later.map(({ name }) => name)).toEqual(["listen", "peer-metrics"]);
});

test.each(later)(
  "parseRunSettings() refuses --$name as not yet there, also from the environment",
  (spec: FlagSpec) => {
    const variable = `CLUSTERNET_${spec.name.toUpperCase().replaceAll("-", "_")}`;
    const why = `this version has no ${spec.later}; leave it out (\`clusternet status --json\` is for programs too)`;
    expect([
      verdict(() => run({ ...least, [spec.name]: "1" })),
      verdict(() => run(least, { [variable]: "1" })),
    ]).toEqual([`64 Cannot use --${spec.name}: ${why}`, `64 Cannot use ${variable}: ${why}`]);
  },
);

test.each<{ name: string; flags: Flags; environment?: Record<string, string>; want: unknown }>([
  { name: "no Kubernetes", flags: {}, environment: { NODE_NAME: "n1" }, want: undefined },
  { name: "a kubeconfig", flags: { kubeconfig: "/k" }, want: { kubeconfig: "/k" } },
  {
    name: "a kubeconfig relative to where it was started",
    flags: { kubeconfig: "k" },
    want: { kubeconfig: resolve("k") },
  },
  {
    name: "the pod's service account",
    flags: { kubeconfig: "in-cluster" },
    want: { kubeconfig: "in-cluster" },
  },
  {
    name: "a Node before that of the environment",
    flags: { kubeconfig: "/k", "kubernetes-node": "n1.example" },
    environment: { NODE_NAME: "n2", CLUSTERNET_KUBERNETES_NODE: "n3" },
    want: { kubeconfig: "/k", node: "n1.example" },
  },
  {
    name: "our variable before that of the pod",
    flags: { kubeconfig: "/k" },
    environment: { NODE_NAME: "n2", CLUSTERNET_KUBERNETES_NODE: "n3" },
    want: { kubeconfig: "/k", node: "n3" },
  },
  {
    name: "the variable of the pod",
    flags: {},
    environment: { NODE_NAME: "n2", CLUSTERNET_KUBECONFIG: "in-cluster" },
    want: { kubeconfig: "in-cluster", node: "n2" },
  },
  {
    name: "an empty variable as none",
    flags: { kubeconfig: "/k" },
    environment: { NODE_NAME: "" },
    want: { kubeconfig: "/k" },
  },
])("parseRunSettings() takes of Kubernetes $name", ({ flags, environment, want }) => {
  expect(run({ ...least, ...flags }, environment).kubernetes).toEqual(want as { kubeconfig: string });
});

const nodeForm = "expected 1 to 253 of a-z, 0-9, . and -, the first and last a letter or digit";
test.each<{ flags: Flags; environment?: Record<string, string>; want: string }>([
  {
    flags: { kubeconfig: "" },
    want: '64 Cannot use --kubeconfig "": expected the path of a kubeconfig, or in-cluster',
  },
  {
    flags: { kubeconfig: "/k", "kubernetes-node": "N 1" },
    want: `64 Cannot use --kubernetes-node "N 1": ${nodeForm}`,
  },
  {
    flags: { kubeconfig: "/k" },
    environment: { NODE_NAME: "n_1" },
    want: `64 Cannot use NODE_NAME "n_1": ${nodeForm}`,
  },
  {
    flags: {},
    environment: { CLUSTERNET_KUBERNETES_NODE: "n1" },
    want: "64 Cannot use CLUSTERNET_KUBERNETES_NODE without --kubeconfig: nothing says where Kubernetes is",
  },
])("parseRunSettings() refuses of Kubernetes $want", ({ flags, environment, want }) => {
  expect(verdict(() => run({ ...least, ...flags }, environment))).toBe(want);
});

const environmentCases: readonly {
  readonly name: string;
  readonly environment: Record<string, string>;
  readonly flags?: Flags;
  readonly want: string;
}[] = [
  { name: "a value", environment: { CLUSTERNET_LISTEN_PORT: "7000" }, want: "7000 [127.0.0.1:7835] false" },
  {
    name: "empty as unset",
    environment: { CLUSTERNET_LISTEN_PORT: "" },
    want: "7838 [127.0.0.1:7835] false",
  },
  {
    name: "a flag before its variable",
    environment: { CLUSTERNET_LISTEN_PORT: "7000", CLUSTERNET_CURATOR: "127.0.0.9" },
    flags: { "listen-port": "7001", curator: "127.0.0.2" },
    want: "7001 [127.0.0.2:7835] false",
  },
  {
    name: "a repeatable one split at commas",
    environment: { CLUSTERNET_CURATOR: "127.0.0.2,[::1]:9" },
    want: "7838 [127.0.0.2:7835 [::1]:9] false",
  },
  { name: "a switch as 1", environment: { CLUSTERNET_ONCE: "1" }, want: "7838 [127.0.0.1:7835] true" },
  { name: "a switch as true", environment: { CLUSTERNET_ONCE: "true" }, want: "7838 [127.0.0.1:7835] true" },
  { name: "a switch as 0", environment: { CLUSTERNET_ONCE: "0" }, want: "7838 [127.0.0.1:7835] false" },
  {
    name: "a switch as false",
    environment: { CLUSTERNET_ONCE: "false" },
    want: "7838 [127.0.0.1:7835] false",
  },
  {
    name: "a switch that is none",
    environment: { CLUSTERNET_ONCE: "yes" },
    want: '64 Cannot use CLUSTERNET_ONCE "yes": expected 1, 0, true or false',
  },
  {
    name: "a bad value by its variable's name",
    environment: { CLUSTERNET_LISTEN_PORT: "x" },
    want: '64 Cannot use CLUSTERNET_LISTEN_PORT "x": expected a whole number from 1 to 65535',
  },
  {
    name: "the bad one of several",
    environment: { CLUSTERNET_CURATOR: "127.0.0.2,::1" },
    want: `64 Cannot use CLUSTERNET_CURATOR "::1": ${hostPortForm} (write [::1]:7835)`,
  },
  {
    name: "what cannot be used by its variable's name",
    environment: { CLUSTERNET_EXTERNAL_ADDRESS: "10.192.1.1" },
    want: '78 Cannot use CLUSTERNET_EXTERNAL_ADDRESS "10.192.1.1": it is inside ClusterNet 10.192.0.0/11',
  },
  {
    name: "what has no flag",
    environment: { CLUSTERNET_CLOCK_SPEED: "1001" },
    want: '64 Cannot use CLUSTERNET_CLOCK_SPEED "1001": expected a whole number from 1 to 1000',
  },
  {
    name: "an interface name as strictly",
    environment: { CLUSTERNET_INTERFACE: "lo" },
    want: `64 Cannot use CLUSTERNET_INTERFACE "lo": ${interfaceForm}`,
  },
  {
    name: "nothing of the Curator's",
    environment: { CLUSTERNET_CURATOR_LISTEN_PORT: "x" },
    want: "7838 [127.0.0.1:7835] false",
  },
];

test.each(environmentCases)("the environment gives $name", ({ environment, flags, want }) => {
  const base = { CLUSTERNET_INSECURE: "1", CLUSTERNET_NODE_ID: "a", CLUSTERNET_CURATOR: "127.0.0.1" };
  let found = "";
  const parsed = verdict(() => {
    const settings = run(flags ?? {}, { ...base, ...environment });
    found = `${settings.listenPort} [${settings.curators.map(({ text }) => text).join(" ")}] ${settings.once !== undefined}`;
  });
  expect(parsed === "accepted" ? found : parsed).toBe(want);
});

function curator(flags: Flags, environment: Record<string, string> = {}) {
  return parseCuratorSettings(collectFlags(curatorFlags, occurrences(flags), environment, curatorVariables));
}

test("parseCuratorSettings() fills in its defaults and reads its own variables alone", () => {
  const environment = {
    CLUSTERNET_CURATOR_LISTEN: "[::1]:0",
    CLUSTERNET_DATA_DIR: "/elsewhere",
    CLUSTERNET_LOG_FORMAT: "json",
    CLUSTERNET_CURATOR_LOG_LEVEL: "warn",
  };
  const settings = curator({ insecure: "true" }, environment);
  expect({ ...settings.options, clusterNets: settings.options.clusterNets.map(({ text }) => text) }).toEqual({
    listen: { host: "::1", port: 0 },
    dataDir: "/var/lib/clusternet-curator",
    store: "sqlite",
    clusterNets: ["10.192.0.0/11"],
    insecureAnywhere: false,
  });
  expect(settings.log).toEqual({ format: "text", level: "warn" });
});

test.each<FlagCase>([
  { flags: {}, want: "accepted" },
  { flags: { listen: "0.0.0.0:7835" }, want: "accepted" },
  {
    flags: { insecure: "true", listen: "0.0.0.0:7835" },
    want: '64 Cannot use --listen "0.0.0.0:7835" with --insecure: expected an address in 127.0.0.0/8 or ::1 (--insecure-anywhere allows any)',
  },
  { flags: { insecure: "true", "insecure-anywhere": "true", listen: "0.0.0.0:7835" }, want: "accepted" },
  {
    flags: { listen: "nonsense" },
    want: '64 Cannot use --listen "nonsense": it has no port, expected HOST:PORT (7835 is the Curators\' port)',
  },
  { flags: { listen: "192.0.2.10" }, want: "accepted" },
  { flags: { listen: "curator.example:7835" }, want: "accepted" },
  {
    flags: { "cluster-net": "0.0.0.0/0", insecure: "true", cert: "x" },
    want: "64 Cannot use --cert with --insecure: there is no TLS then",
  },
  {
    flags: { insecure: "true", store: "etcd" },
    want: '64 Cannot use --store "etcd": expected sqlite or memory',
  },
  {
    flags: { insecure: "true", cert: "x" },
    want: "64 Cannot use --cert with --insecure: there is no TLS then",
  },
])("parseCuratorSettings() judges $flags", ({ flags, want }) => {
  expect(verdict(() => curator(flags))).toBe(want);
});

test("parseCuratorSettings() looks for credentials in its data directory", () => {
  expect(curator({}).options.credentials).toEqual(inside("/var/lib/clusternet-curator"));
  expect(curator({ "data-dir": "d", ca: "x" }).options.credentials).toEqual({
    ...inside(resolve("d")),
    ca: "x",
  });
});

test.each(["a", "0", "web-1.example", "metropolis-08480dc1c75f3a84796f3859a4cbec77", "a".repeat(63)])(
  "parsePkiArgument() takes %s",
  (id) => {
    expect(parsePkiArgument(id)).toBe(id as NodeId);
  },
);

test.each(["", "A", "-a", ".a", "a_b", "a b", "a/b", "ä", "a\n", "a".repeat(64)])(
  "parsePkiArgument() refuses %j",
  (id) => {
    expect(verdict(() => parsePkiArgument(id))).toMatch(
      /^64 Cannot issue a certificate for node ".*: expected 1 to 63 of a-z, 0-9, \. and -, starting with a letter or digit$/,
    );
  },
);

test.each([
  { name: "run", parse: (given: GivenFlags) => parseRunSettings(given).dataDirectory },
  { name: "down and pubkey", parse: (given: GivenFlags) => parsePlaceSettings(given).dataDirectory },
  { name: "status", parse: (given: GivenFlags) => parseStatusSettings(given).dataDirectory },
  { name: "curator", parse: (given: GivenFlags) => parseCuratorSettings(given).options.dataDir },
  { name: "node", parse: (given: GivenFlags) => parseNodeSettings(given).dataDir },
])("settings of $name make a relative data directory absolute", ({ name, parse }) => {
  const flag = { origin: "--data-dir", texts: ["some/../data/"] };
  const more = name === "run" ? Object.entries(least) : [];
  const given = new Map([
    ["data-dir", flag],
    ...more.map(([key, value]) => [key, { origin: `--${key}`, texts: [value].flat() }] as const),
  ]);
  expect(parse(given)).toBe(`${process.cwd()}/data`);
});

const placeIn = (directory: string) => () =>
  parsePlaceSettings(new Map([["data-dir", { origin: "--data-dir", texts: [directory] }]]));

test("the length of a socket's path is that of the absolute one", () => {
  const long = "d".repeat(107 - "/clusternet.sock".length);
  expect(verdict(placeIn(`/${long.slice(1)}`))).toBe("accepted");
  expect(verdict(placeIn(long.slice(1)))).toStartWith("78 Cannot use data directory ");
});

test("parsePlaceSettings() refuses a data directory that is too long for a socket", () => {
  const environment = { CLUSTERNET_DATA_DIR: `/${"d".repeat(200)}` };
  const parse = () => parsePlaceSettings(collectFlags(placeFlags, new Map(), environment, agentVariables));
  expect(verdict(parse)).toStartWith("78 Cannot use data directory ");
});
