/** The grammar of the command line: argv to what is run, or one line and exit 64; help that names everything. */
import { expect, test } from "bun:test";
import { type Environment, type Invocation, parseCommandLine } from "../src/cli.ts";
import { ClusternetError, UsageError } from "../src/errors.ts";
import {
  curatorFlags,
  nodeFlags,
  nodeListFlags,
  pkiInitFlags,
  pkiIssueFlags,
  placeFlags,
  runFlags,
  statusFlags,
} from "../src/flags.ts";
import { version } from "../src/version.ts";

const runs = ["run", "--insecure", "--node-id", "a", "--curator", "127.0.0.1"];

function parsed(argv: readonly string[], environment: Environment = {}): Invocation {
  return parseCommandLine(argv, environment);
}

function refusal(argv: readonly string[], environment: Environment = {}): string {
  try {
    parseCommandLine(argv, environment);
  } catch (error) {
    if (error instanceof ClusternetError) return `${error.exit} ${error.message}`;
    throw error;
  }
  return "accepted";
}

function helpOf(...argv: string[]): string {
  const invocation = parsed([...argv, "--help"]);
  if (invocation.command !== "help") throw new Error(`${argv.join(" ")} --help is ${invocation.command}`);
  return invocation.text;
}

const place = { dataDirectory: "/var/lib/clusternet", interfaceName: "clusternet" };
const curatorData = { dataDir: "/var/lib/clusternet-curator" };

test.each<{ argv: string; environment?: Environment; want: unknown }>([
  { argv: "down", want: { command: "down", settings: place } },
  { argv: "pubkey --data-dir=/d", want: { command: "pubkey", settings: { ...place, dataDirectory: "/d" } } },
  {
    argv: "status --interface m --json --check",
    want: { command: "status", settings: { ...place, interfaceName: "m", json: true, check: true } },
  },
  {
    argv: "status",
    environment: {
      CLUSTERNET_DATA_DIR: "/e",
      CLUSTERNET_INTERFACE: "m",
      CLUSTERNET_CHECK: "1",
      CLUSTERNET_JSON: "",
    },
    want: {
      command: "status",
      settings: { dataDirectory: "/e", interfaceName: "m", json: false, check: true },
    },
  },
  { argv: "node list", want: { command: "node list", options: { ...curatorData, json: false } } },
  { argv: "node list --json", want: { command: "node list", options: { ...curatorData, json: true } } },
  {
    argv: "node remove b",
    environment: { CLUSTERNET_CURATOR_DATA_DIR: "/c", CLUSTERNET_DATA_DIR: "/e" },
    want: { command: "node remove", options: { dataDir: "/c" }, id: "b" },
  },
  {
    argv: "node allow --data-dir /c b",
    want: { command: "node allow", options: { dataDir: "/c" }, id: "b" },
  },
  { argv: "pki init --ca-dir /ca", want: { command: "pki init", options: { caDir: "/ca" } } },
  {
    argv: "pki issue a.b-1 --out o",
    environment: { CLUSTERNET_CA_DIR: "/ca" },
    want: { command: "pki issue", options: { caDir: "/ca", out: "o" }, id: "a.b-1" },
  },
  { argv: "node remove -- -b", want: { command: "node remove", options: curatorData, id: "-b" } },
])("parseCommandLine() understands `$argv`", ({ argv, environment, want }) => {
  expect(parsed(argv.split(" "), environment)).toEqual(want as Invocation);
});

test("parseCommandLine() gives run and curator their settings", () => {
  const run = parsed([
    ...runs,
    "--curator",
    "[::1]:9",
    "--report-status",
    "--once",
    "--dry-run",
    "--timeout=5",
  ]);
  if (run.command !== "run") throw new Error(`it is ${run.command}`);
  expect(run.settings).toMatchObject({
    reportStatus: "on",
    once: { timeoutSeconds: 5, dryRun: true },
    curators: [{ text: "127.0.0.1:7835" }, { text: "[::1]:9" }],
  });
  const curator = parsed(["curator", "--insecure"], { CLUSTERNET_CURATOR_LOG_FORMAT: "json" });
  if (curator.command !== "curator") throw new Error(`it is ${curator.command}`);
  expect(curator.settings).toMatchObject({
    log: { format: "json", level: "info" },
    options: { store: "sqlite" },
  });
});

test.each([
  { given: ["--report-status"], want: "on" },
  { given: ["--report-status", "off"], want: "off" },
  { given: ["--report-status=auto"], want: "auto" },
  { given: ["--report-status", "--once"], want: "on" },
  { given: [], want: "auto" },
])("--report-status as $given", ({ given, want }) => {
  const invocation = parsed([...runs, ...given]);
  expect(invocation.command === "run" ? invocation.settings.reportStatus : undefined).toBe(want);
});

test.each<{ argv: readonly string[]; environment?: Environment; want: string }>([
  {
    argv: ["frob"],
    want: 'Cannot use command "frob": `clusternet` has none of that name, see `clusternet --help`',
  },
  {
    argv: ["stauts"],
    want: 'Cannot use command "stauts": `clusternet` has none of that name, did you mean status?',
  },
  {
    argv: ["help"],
    want: 'Cannot use command "help": `clusternet` has none of that name, see `clusternet --help`',
  },
  {
    argv: ["\u001b[31m\n"],
    want: 'Cannot use command "\\u{1b}[31m\\u{a}": `clusternet` has none of that name, see `clusternet --help`',
  },
  {
    argv: ["node", "frob"],
    want: 'Cannot use command "frob": `clusternet node` has none of that name, see `clusternet node --help`',
  },
  {
    argv: ["--frob"],
    want: 'Cannot use flag "--frob": `clusternet` has none of that name, see `clusternet --help`',
  },
  {
    argv: ["run", "--frob"],
    want: 'Cannot use flag "--frob": `clusternet run` has none of that name, see `clusternet run --help`',
  },
  {
    argv: ["run", "--inteface", "m"],
    want: 'Cannot use flag "--inteface": `clusternet run` has none of that name, did you mean --interface?',
  },
  {
    argv: ["run", "-i"],
    want: 'Cannot use flag "-i": `clusternet run` has none of that name, see `clusternet run --help`',
  },
  {
    argv: ["run", "--version"],
    want: 'Cannot use flag "--version": `clusternet run` has none of that name, see `clusternet run --help`',
  },
  {
    argv: ["down", "--json"],
    want: 'Cannot use flag "--json": `clusternet down` has none of that name, see `clusternet down --help`',
  },
  { argv: ["status", "--json=1"], want: 'Cannot use "--json=1": --json is a switch, expected no value' },
  {
    argv: ["status", "--no-json"],
    want: 'Cannot use flag "--no-json": `clusternet status` has none of that name, did you mean --json?',
  },
  { argv: ["run", "--curator"], want: "Cannot use --curator: nothing follows it, expected HOST:PORT" },
  {
    argv: ["run", "--curator", "--once"],
    want: "Cannot use --curator: flag --once follows it, expected HOST:PORT",
  },
  {
    argv: ["status", "x", "y"],
    want: 'Cannot use argument "x" "y": `clusternet status` expected no argument',
  },
  {
    argv: ["node", "remove"],
    want: "Cannot run `clusternet node remove` without ID: no argument was given, expected one",
  },
  {
    argv: ["node", "remove", "a", "b"],
    want: 'Cannot use argument "b": `clusternet node remove` expected 1 argument',
  },
  {
    argv: ["node", "allow", "a b"],
    want: 'Cannot use node with ID "a b": expected 1 to 253 printable ASCII characters without spaces',
  },
  {
    argv: ["node", "allow", ""],
    want: 'Cannot use node with ID "": expected 1 to 253 printable ASCII characters without spaces',
  },
  { argv: ["status", "--json", "--json"], want: "Cannot use --json: given 2 times, expected once" },
  {
    argv: ["down", "--interface", "a", "--interface=a"],
    want: 'Cannot use --interface: given 2 times, as "a" and "a", expected once',
  },
  {
    argv: ["down"],
    environment: { CLUSTERNET_INTERFACE: "-x" },
    want: 'Cannot use CLUSTERNET_INTERFACE "-x": expected 1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo',
  },
  {
    argv: ["run", "--interface", "-x"],
    want: 'Cannot use --interface "-x": expected 1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo',
  },
  { argv: ["run"], want: "Cannot run without --curator: none was given, expected at least one HOST:PORT" },
  {
    argv: ["run", "--insecure", "--node-id=a", "--curator=127.0.0.1", "--kubernetes-node=n1"],
    want: "Cannot use --kubernetes-node without --kubeconfig: nothing says where Kubernetes is",
  },
  {
    argv: ["run", "--peer-metrics"],
    want: "Cannot use --peer-metrics: this version has no metrics over HTTP; leave it out (`clusternet status --json` is for programs too)",
  },
  {
    argv: ["pki", "frob"],
    want: 'Cannot use command "frob": `clusternet pki` has none of that name, see `clusternet pki --help`',
  },
  {
    argv: ["pki", "init"],
    want: "Cannot run `clusternet pki init` without --ca-dir: none was given, expected DIR",
  },
  {
    argv: ["pki", "issue", "a", "--ca-dir", "d"],
    want: "Cannot run `clusternet pki issue` without --out: none was given, expected DIR",
  },
  {
    argv: ["pki", "issue", "--ca-dir=d", "--out=o"],
    want: "Cannot run `clusternet pki issue` without ID: no argument was given, expected one",
  },
  {
    argv: ["pki", "issue", "A", "--ca-dir=d", "--out=o"],
    want: 'Cannot issue a certificate for node "A": expected 1 to 63 of a-z, 0-9, . and -, starting with a letter or digit',
  },
])("parseCommandLine() refuses $argv in one line", ({ argv, environment, want }) => {
  expect(refusal(argv, environment)).toBe(`64 ${want}`);
});

test.each([{ argv: [] }, { argv: ["node"] }, { argv: ["pki"] }])(
  "parseCommandLine() of $argv is the usage",
  ({ argv }) => {
    const invocation = parsed(argv);
    expect(invocation.command).toBe("usage");
    expect("text" in invocation ? invocation.text : "").toStartWith(
      `Usage: ${["clusternet", ...argv].join(" ")} `,
    );
  },
);

test("--version prints version, commit and platform", () => {
  expect(parsed(["--version"])).toEqual({
    command: "help",
    text: expect.stringMatching(
      new RegExp(`^clusternet ${version.replaceAll(".", "\\.")} \\(commit \\w+, linux-(x64|arm64)\\)\n$`),
    ) as unknown as string,
  });
});

test.each([
  { command: ["run"], flags: runFlags, variables: "CLUSTERNET_" },
  { command: ["down"], flags: placeFlags, variables: "CLUSTERNET_" },
  { command: ["status"], flags: statusFlags, variables: "CLUSTERNET_" },
  { command: ["pubkey"], flags: placeFlags, variables: "CLUSTERNET_" },
  { command: ["curator"], flags: curatorFlags, variables: "CLUSTERNET_CURATOR_" },
  { command: ["node", "list"], flags: nodeListFlags, variables: "CLUSTERNET_CURATOR_" },
  { command: ["node", "remove"], flags: nodeFlags, variables: "CLUSTERNET_CURATOR_" },
  { command: ["node", "allow"], flags: nodeFlags, variables: "CLUSTERNET_CURATOR_" },
  { command: ["pki", "init"], flags: pkiInitFlags, variables: "CLUSTERNET_" },
  { command: ["pki", "issue"], flags: pkiIssueFlags, variables: "CLUSTERNET_" },
])(
  "help of $command names every flag, its default and its variable, and nothing of later versions",
  ({ command, flags, variables }) => {
    const help = helpOf(...command);
    expect(help).toStartWith(`Usage: clusternet ${command.join(" ")} `);
    const flat = help.replace(/\s+/g, " ");
    for (const { name, shownDefault, later } of flags) {
      const variable = `[${variables}${name.toUpperCase().replaceAll("-", "_")}]`;
      expect([name, flat.includes(` --${name} `), flat.includes(variable)]).toEqual([
        name,
        later === undefined,
        later === undefined,
      ]);
      if (shownDefault !== undefined) expect(flat).toContain(`(default: ${shownDefault}) ${variable}`);
    }
    expect(help.split("\n").filter((line) => line.length > 100)).toEqual([]);
  },
);

// What the contract promises, written down a second time: a flag that vanishes from the table must not go unnoticed.
test("help of run names every flag of the contract that this version has, with the contract's default", () => {
  const flat = helpOf("run").replace(/\s+/g, " ");
  const promised: Readonly<Record<string, string | undefined>> = {
    "data-dir": "/var/lib/clusternet",
    curator: undefined,
    "node-id": "common name of the certificate",
    ca: "DATA-DIR/credentials/ca.pem",
    cert: "DATA-DIR/credentials/cert.pem",
    key: "DATA-DIR/credentials/cert-key.pem",
    "curator-id": "any node of the cluster",
    insecure: undefined,
    "insecure-anywhere": undefined,
    "cluster-net": "10.192.0.0/11",
    interface: "clusternet",
    "listen-port": "7838",
    "pod-prefix": undefined,
    "external-address": "auto",
    "report-status": "auto",
    mtu: "auto",
    wireguard: "auto",
    keepalive: "off",
    resync: "30",
    once: undefined,
    timeout: "30",
    "dry-run": undefined,
    "log-format": "text",
    "log-level": "info",
  };
  for (const [name, shown] of Object.entries(promised)) {
    const about = new RegExp(` --${name} .*?\\[CLUSTERNET_`).exec(flat)?.[0] ?? `no --${name}`;
    expect([name, /\(default: (.*?)\)/.exec(about)?.[1]]).toEqual([name, shown]);
  }
});

test("help names every command", () => {
  const help = helpOf();
  for (const command of ["run", "down", "status", "pubkey", "curator", "node", "pki"]) {
    expect(help).toMatch(new RegExp(`^  ${command} `, "m"));
  }
  expect(help).not.toMatch(/^ {2}help /m);
  expect(help.split("\n").filter((line) => line.length > 100)).toEqual([]);
  for (const command of ["list", "remove", "allow"]) {
    expect(helpOf("node")).toMatch(new RegExp(`^  ${command} `, "m"));
  }
});

test("--help comes before what is wrong with the other flags", () => {
  expect(helpOf("run", "--frob")).toStartWith("Usage: clusternet run ");
  expect(helpOf("run", "--interface", "-x")).toStartWith("Usage: clusternet run ");
});

test("the speed of the clock is the environment's alone: no flag, and not in the help", () => {
  const argv = ["run", "--insecure", "--node-id", "a", "--curator", "127.0.0.1"];
  expect(parsed(argv, { CLUSTERNET_CLOCK_SPEED: "20" })).toMatchObject({ settings: { clockSpeed: 20 } });
  expect(() => parsed([...argv, "--clock-speed", "20"])).toThrow('Cannot use flag "--clock-speed"');
  expect(helpOf("run")).not.toContain("clock");
});

test("every refusal of the command line is a UsageError, so that main prints it in one line", () => {
  expect(() => parsed(["run", "--frob"])).toThrow(UsageError);
});
