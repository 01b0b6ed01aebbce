/**
 * `clusternet curator` and `clusternet node …` as functions: start, socket, lock, refusals, and what they print.
 */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { ClientError, createChannel, type Channel } from "nice-grpc";
import { runCurator, type CuratorOptions } from "../../src/commands/curator.ts";
import { nodeAllow, nodeList, nodeRemove, renderNodeTable } from "../../src/commands/node.ts";
import { parseCommandLine } from "../../src/cli.ts";
import { parsePrefix } from "../../src/core/prefix.ts";
import { defaultCuratorDirectory } from "../../src/checks.ts";
import { nodeCommandOf } from "../../src/node-command.ts";
import { ClusternetError, describeError, type ExitStatus } from "../../src/errors.ts";
import type { RedactingLogger } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { waitFor } from "../lab/wait.ts";
import { certificateOf, issued, TestTrust } from "../trust/cluster.ts";
import { clientOf, codeOf, keyOf, statusBytes } from "./cluster.ts";
import { shownSerial, tlsChannel } from "./tls-client.ts";

let directory: string;
const cleanups: (() => unknown)[] = [];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "curator-"));
});
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
  rmSync(directory, { recursive: true, force: true });
});

interface RunningCurator {
  readonly port: number;
  readonly lines: readonly string[];
  readonly warnings: readonly string[];
  readonly clock: FakeClock;
  stop(): Promise<ExitStatus>;
}

function options(changes: Partial<CuratorOptions> = {}): CuratorOptions {
  return {
    listen: { host: "127.0.0.1", port: 0 },
    dataDir: join(directory, "data"),
    store: "sqlite",
    clusterNets: [parsePrefix("10.192.0.0/11")],
    insecureAnywhere: false,
    ...changes,
  };
}

/** Starts a Curator and waits until it listens. */
async function start(changes: Partial<CuratorOptions> = {}): Promise<RunningCurator> {
  const abort = new AbortController();
  const lines: string[] = [];
  const warnings: string[] = [];
  const clock = new FakeClock();
  let port = 0;
  const log: RedactingLogger = {
    redact() {},
    debug() {},
    info(message, fields) {
      lines.push(message);
      if (message === "Curator is listening") port = Number(/:(\d+)$/.exec(String(fields?.["listen"]))?.[1]);
    },
    warn: (message) => warnings.push(message),
    error: (message) => lines.push(message),
  };
  const ended = runCurator(options(changes), { log, clock, signal: abort.signal });
  const stop = (): Promise<ExitStatus> => {
    abort.abort();
    return ended;
  };
  cleanups.push(() => stop().catch(() => undefined));
  let failed = false;
  ended.catch(() => {
    failed = true;
  });
  await waitFor(() => port !== 0 || failed, "the Curator to listen");
  if (failed) await ended;
  return { port, lines, warnings, clock, stop };
}

async function thrownBy(run: () => Promise<unknown>): Promise<ClusternetError> {
  try {
    await run();
  } catch (error) {
    if (error instanceof ClusternetError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

async function joinCluster(port: number, id: string): Promise<void> {
  const channel = createChannel(`127.0.0.1:${port}`);
  const client = clientOf(channel, id);
  await client.updateNodeStatus({ nodeId: id, status: statusBytes("192.0.2.1") });
  const prefixes = [{ cidr: "192.0.2.1/32" }, { cidr: "10.192.1.0/24" }];
  await client.updateNodeClusterNetworking({ clusternet: { wireguardPubkey: keyOf(1), prefixes } });
  channel.close();
}

/** What node "a" is answered when it reports its status over this channel. */
async function reportOf(channel: Channel): Promise<string> {
  const status = { nodeId: "a", status: statusBytes("192.0.2.1") };
  return await codeOf(clientOf(channel, undefined).updateNodeStatus(status));
}

/** The Curator's words for what it refused. */
async function detailsOf(call: Promise<unknown>): Promise<string> {
  const [outcome] = await Promise.allSettled([call]);
  return outcome.status === "rejected" && outcome.reason instanceof ClientError
    ? outcome.reason.details
    : "none";
}

/** What a node command prints, and how it ends. */
async function printed(
  run: (context: { readonly stdout: (text: string) => void }) => Promise<ExitStatus>,
): Promise<string> {
  let text = "";
  const status = await run({ stdout: (more) => (text += more) });
  expect(status).toBe(0);
  return text;
}

describe("runCurator()", () => {
  test("serves, keeps its nodes over a restart, and leaves neither socket nor lock held", async () => {
    const first = await start();
    const { dataDir } = options();
    await joinCluster(first.port, "a");
    expect(statSync(dataDir).mode & 0o777).toBe(0o700);
    expect(statSync(join(dataDir, "curator.sock")).mode & 0o777).toBe(0o600);
    expect(statSync(join(dataDir, "curator.db")).mode & 0o777).toBe(0o600);
    expect(await first.stop()).toBe(0);
    expect(existsSync(join(dataDir, "curator.sock"))).toBe(false);
    expect(existsSync(join(dataDir, "curator.db-wal"))).toBe(false);

    await start();
    const listed: unknown = JSON.parse(
      await printed((context) => nodeList({ dataDir, json: true }, context)),
    );
    expect(listed).toMatchObject([
      {
        id: "a",
        state: "up",
        externalAddress: "192.0.2.1",
        publicKey: keyOf(1),
        prefixes: ["192.0.2.1/32", "10.192.1.0/24"],
      },
    ]);
  });

  test("warns at every start that there is no TLS, and of memory", async () => {
    const sqlite = await start();
    expect(sqlite.warnings).toEqual([
      "Running without TLS: every user of this machine can read the cluster and pose as any node",
    ]);
    await sqlite.stop();
    const memory = await start({
      store: "memory",
      insecureAnywhere: true,
      listen: { host: "0.0.0.0", port: 0 },
    });
    expect(memory.warnings).toEqual([
      "Running without TLS: whoever reaches the port can read the cluster and pose as any node",
      "Nodes are kept in memory only: a restart forgets all of them",
    ]);
  });

  test("listens on ::1", async () => {
    const running = await start({ listen: { host: "::1", port: 0 } });
    const channel = createChannel(`[::1]:${running.port}`);
    cleanups.push(() => channel.close());
    const request = { nodeId: "a", status: statusBytes("2001:db8::1") };
    expect(await codeOf(clientOf(channel, "a").updateNodeStatus(request))).toBe("OK");
  });

  test("takes the place of one that was killed: its old socket is no obstacle", async () => {
    const first = await start();
    await first.stop();
    const { dataDir } = options();
    const left = createServer();
    await new Promise<void>((resolve) => left.listen(join(dataDir, "curator.sock"), resolve));
    linkSync(join(dataDir, "curator.sock"), join(dataDir, "kept"));
    await new Promise((resolve) => left.close(resolve));
    renameSync(join(dataDir, "kept"), join(dataDir, "curator.sock"));
    chmodSync(join(dataDir, "curator.sock"), 0o644);
    await start();
    expect(statSync(join(dataDir, "curator.sock")).mode & 0o777).toBe(0o600);
  });

  test("a second one on the same directory: exit 75, naming the process; the first goes on", async () => {
    const first = await start();
    const error = await thrownBy(() => start());
    expect(error.exit).toBe(75);
    expect(error.message).toStartWith(
      `Cannot use data directory "${options().dataDir}": process ${process.pid} (`,
    );
    await joinCluster(first.port, "a");
  });

  test("a port that is taken: exit 69, naming it, and the directory is free again", async () => {
    const squatter = createServer();
    await new Promise<void>((resolve) => squatter.listen(0, "127.0.0.1", resolve));
    cleanups.push(() => squatter.close());
    const address = squatter.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    const error = await thrownBy(() => start({ listen: { host: "127.0.0.1", port: address.port } }));
    expect([error.exit, describeError(error)]).toEqual([
      69,
      `Cannot listen on 127.0.0.1:${address.port}: the port is taken\n` +
        "  hint: Stop the program that listens there (ss -ltnp shows it to root), or choose another port with --listen",
    ]);
    await start();
  });

  test.each([
    {
      host: "192.0.2.99",
      want:
        "Cannot listen on 192.0.2.99:7835: this host does not have the address\n" +
        "  hint: Give --listen an address of this host, which `ip address` shows, or start this when it is there",
    },
    {
      host: "2001:db8::99",
      want:
        "Cannot listen on [2001:db8::99]:7835: this host does not have the address\n" +
        "  hint: Give --listen an address of this host, which `ip address` shows, or start this when it is there",
    },
    {
      host: "curator.invalid",
      want:
        "Cannot listen on curator.invalid:7835: the name is not known\n" +
        "  hint: Give --listen an address of this host instead of its name",
    },
  ])(
    "$host, which cannot be listened on: exit 78, and what is the matter with it",
    async ({ host, want }) => {
      const error = await thrownBy(() => start({ listen: { host, port: 7835 } }));
      expect([error.exit, describeError(error)]).toEqual([78, want]);
    },
  );

  test("something else in the place of its socket: exit 78, and what to do", async () => {
    const path = join(options().dataDir, "curator.sock");
    mkdirSync(path, { recursive: true });
    const error = await thrownBy(() => start());
    expect([error.exit, describeError(error)]).toEqual([
      78,
      `Cannot listen on socket "${path}": it is a directory, expected nothing or a socket\n  hint: Remove it`,
    ]);
  });

  test.each([
    {
      name: "with credentials that are not there",
      changes: { credentials: { ca: "/nowhere/ca.pem", cert: "/nowhere/cert.pem", key: "/nowhere/key.pem" } },
      want: [78, 'Cannot read cluster CA "/nowhere/ca.pem": there is no such file'],
    },
  ])("refuses to start $name", async ({ changes, want }) => {
    const error = await thrownBy(() => start(changes));
    expect([error.exit, error.message]).toEqual(want as [78, string]);
    expect(existsSync(options().dataDir)).toBe(false);
  });

  test("with credentials it takes those who have some of the same cluster, on any address, and warns of nothing", async () => {
    using trust = new TestTrust();
    const { port, warnings } = await start({
      credentials: trust.files("curator"),
      listen: { host: "0.0.0.0", port: 0 },
    });
    expect(warnings).toEqual([]);
    const channel = tlsChannel(port, makeNodeCertificate("a", trust.ca, issued));
    const nobody = tlsChannel(port);
    const status = { nodeId: "a", status: statusBytes("192.0.2.1") };
    expect([
      await codeOf(clientOf(channel, undefined).updateNodeStatus(status)),
      await codeOf(clientOf(nobody, undefined).updateNodeStatus(status)),
    ]).toEqual(["OK", "UNAUTHENTICATED"]);
    channel.close();
    nobody.close();
  });

  test.each<{ name: string; open: (places: { key: string; data: string }) => void; want: string }>([
    {
      name: "a key that others may read",
      open: ({ key }) => chmodSync(key, 0o640),
      want: 'cert-key.pem" has mode 0640, expected 0600',
    },
    {
      name: "a data directory that others may write",
      open: ({ data }) => chmodSync(data, 0o777),
      want: 'data" has mode 0777: others can put',
    },
    {
      name: "a directory of credentials that others may write",
      open: ({ key }) => chmodSync(dirname(key), 0o770),
      want: " has mode 0770: others can put",
    },
  ])("warns of $name", async ({ open, want }) => {
    using trust = new TestTrust();
    const credentials = trust.files("curator");
    mkdirSync(options().dataDir);
    open({ key: credentials.key, data: options().dataDir });
    expect((await start({ credentials })).warnings).toEqual([
      expect.stringContaining(want) as unknown as string,
    ]);
  });

  test("warns of its certificate when it will end soon, and when it has ended", async () => {
    using trust = new TestTrust();
    const own = certificateOf("curator", trust.ca, { notAfter: new Date(issued.getTime() + 7_000) });
    const { warnings, clock } = await start({ credentials: trust.files("curator", { own }) });
    const said = (): readonly string[] =>
      warnings.map((line) => /"\S+curator-cert\.pem" (expire[sd] on \S+ +\S+ \S+)/.exec(line)?.[1] ?? line);
    expect(said()).toEqual(["expires on Jan  1 00:00:07"]);
    for (let turn = 0; turn < 3; turn++) {
      await clock.untilSleeping();
      await clock.advance(5_000);
    }
    await clock.untilSleeping();
    expect(said()).toEqual(["expires on Jan  1 00:00:07", "expired on Jan  1 00:00:07"]);
  });

  test("takes credentials that were put in place of its own, for new connections, and none that cannot be used", async () => {
    using trust = new TestTrust();
    const own = [1, 2].map(() => makeNodeCertificate("curator", trust.ca, issued));
    const [first, second] = own;
    const credentials = trust.files("curator", { ...(first !== undefined && { own: first }) });
    const running = await start({ credentials });
    const before = tlsChannel(running.port, makeNodeCertificate("a", trust.ca, issued));
    cleanups.push(() => before.close());
    /** What a new connection is shown, and what a call on a new and on an old one comes to. */
    const seen = async (): Promise<readonly unknown[]> => {
      await running.clock.untilSleeping();
      await running.clock.advance(5_000);
      await running.clock.untilSleeping();
      const now = tlsChannel(running.port, makeNodeCertificate("a", trust.ca, issued));
      cleanups.push(() => now.close());
      const serial = await shownSerial(running.port);
      const which = own.findIndex(({ certificate }) => certificate.serialNumber === serial) + 1;
      return [which, await reportOf(now), await reportOf(before)];
    };
    expect(await seen()).toEqual([1, "OK", "OK"]);

    writeFileSync(credentials.cert, second?.certificate.toString() ?? "");
    expect(await seen()).toEqual([1, "OK", "OK"]);
    writeFileSync(credentials.key, "nothing of a key");
    expect(await seen()).toEqual([1, "OK", "OK"]);
    trust.files("curator", { own: makeNodeCertificate("other", trust.ca, issued) });
    expect(await seen()).toEqual([1, "OK", "OK"]);
    const cannot = "Cannot take other credentials, going on with those read before: ";
    expect(running.warnings.map((line) => line.replace(/; hint: .*/, ""))).toEqual([
      `${cannot}Cannot use key of the node certificate "${credentials.key}": it is not the key of "${credentials.cert}"`,
      `${cannot}Cannot use key of the node certificate "${credentials.key}": it is no such PEM file, expected one Ed25519 key in PKCS#8 (PRIVATE KEY)`,
      `${cannot}Cannot use node certificate "${credentials.cert}": it now names node "other", expected "curator"`,
    ]);

    trust.files("curator", { ...(second !== undefined && { own: second }) });
    expect(await seen()).toEqual([2, "OK", "OK"]);
    expect(running.lines).toContain("Credentials were replaced: new connections get the new ones");
    expect(running.lines.filter((line) => line.startsWith("No longer: Cannot take")).length).toBe(3);
  });

  test("a damaged database: exit 78, and the file stays", async () => {
    const first = await start();
    await first.stop();
    const file = join(options().dataDir, "curator.db");
    writeFileSync(file, "not a database".repeat(1000));
    const error = await thrownBy(() => start());
    expect([error.exit, error.message]).toEqual([
      78,
      `Cannot use database "${file}": it is damaged or no database`,
    ]);
    expect(readFileSync(file, "utf8")).toStartWith("not a database");
  });

  test("a data directory that is a file, or too long for a socket: exit 78", async () => {
    writeFileSync(join(directory, "file"), "");
    expect((await thrownBy(() => start({ dataDir: join(directory, "file") }))).exit).toBe(78);
    const long = join(directory, "x".repeat(100));
    const error = await thrownBy(() => start({ dataDir: long }));
    expect([error.exit, error.message]).toEqual([
      78,
      expect.stringContaining("expected at most 107") as unknown as string,
    ]);
  });
});

/** Starts one that knows "a", and "gone" as removed. */
async function startWithNodes(): Promise<RunningCurator> {
  const running = await start();
  const { dataDir } = options();
  await joinCluster(running.port, "gone");
  await printed((context) => nodeRemove({ dataDir }, "gone", context));
  const channel = createChannel(`127.0.0.1:${running.port}`);
  cleanups.push(() => channel.close());
  await clientOf(channel, "a").updateNodeStatus({ nodeId: "a", status: statusBytes("192.0.2.7") });
  return running;
}

async function listed(): Promise<unknown> {
  const nodes: unknown = JSON.parse(
    await printed((context) => nodeList({ dataDir: options().dataDir, json: true }, context)),
  );
  return nodes;
}

describe("what is taken away under a running Curator is there again soon", () => {
  test.each([
    { name: "the socket", names: ["curator.sock"], warned: [] },
    {
      name: "the database",
      names: ["curator.db", "curator.db-wal", "curator.db-shm"],
      warned: ["The database was gone: everything was written into a new one"],
    },
    {
      name: "the data directory",
      names: ["."],
      warned: ["The database was gone: everything was written into a new one"],
    },
  ])("$name", async ({ names, warned }) => {
    const running = await startWithNodes();
    const { dataDir } = options();
    const before = await listed();
    for (const name of names) rmSync(join(dataDir, name), { recursive: true });
    await running.clock.advance(5_000);
    const files = ["curator.db", "curator.sock"].map((name) => join(dataDir, name));
    await waitFor(() => files.every((file) => existsSync(file)), "the files");
    expect(await listed()).toEqual(before);
    expect(statSync(dataDir).mode & 0o777).toBe(0o700);
    expect(statSync(join(dataDir, "curator.sock")).mode & 0o777).toBe(0o600);
    expect(running.warnings.slice(1)).toEqual([...warned]);
    // Its place too: nobody else begins to keep the same nodes.
    expect((await thrownBy(() => start())).exit).toBe(75);
    await running.stop();

    await start();
    expect(await listed()).toEqual(before);
  });

  test("what cannot be made again is said once, and made when it can be", async () => {
    const running = await startWithNodes();
    const { dataDir } = options();
    const before = await listed();
    rmSync(dataDir, { recursive: true });
    writeFileSync(dataDir, "a file");
    const said = running.lines.length;
    await running.clock.advance(20_000);
    await waitFor(() => running.lines.length > said, "the failure in the log");
    await running.clock.untilSleeping();
    await running.clock.advance(20_000);
    await running.clock.untilSleeping();
    expect(running.lines.slice(said)).toEqual([
      expect.stringMatching(
        /^Cannot make data directory .*something other than a directory/,
      ) as unknown as string,
    ]);
    rmSync(dataDir);
    await running.clock.advance(5_000);
    await waitFor(() => existsSync(join(dataDir, "curator.sock")), "the socket");
    expect(await listed()).toEqual(before);
  });
});

describe("clusternet node", () => {
  const remedy =
    "Start it with `clusternet curator`, or give with --data-dir the data directory of the one that runs";
  test.each<{ name: string; prepare: (path: string) => (() => void) | undefined; want: string }>([
    { name: "without a data directory", prepare: () => undefined, want: "nobody listens there" },
    {
      name: "where something else has the socket's name",
      prepare: (path) => {
        mkdirSync(dirname(path));
        writeFileSync(path, "");
        return undefined;
      },
      want: "nobody listens there",
    },
    {
      name: "beside one that hangs up",
      prepare: (path) => {
        mkdirSync(dirname(path));
        const rude = createServer((connection) => connection.destroy()).listen(path);
        return () => rude.close();
      },
      want: "it closed the connection without an answer",
    },
  ])("$name: exit 69, saying what was dialled and what to do", async ({ prepare, want }) => {
    const { dataDir } = options();
    const path = join(dataDir, "curator.sock");
    const cleanUp = prepare(path);
    if (cleanUp !== undefined) cleanups.push(cleanUp);
    const error = await thrownBy(() => nodeList({ dataDir, json: false }, { stdout() {} }));
    expect([error.exit, error.message, error.hint]).toEqual([
      69,
      `Cannot reach the Curator at socket "${path}": ${want}`,
      remedy,
    ]);
    // Nothing of Bun's own words, which the causes of an error may bring.
    expect(describeError(error)).not.toContain("typo");
  });

  test("list, remove and allow, each twice", async () => {
    const running = await start();
    const { dataDir } = options();
    expect(await printed((context) => nodeList({ dataDir, json: false }, context))).toBe(
      "No nodes: none has reported its status to this Curator yet\n",
    );
    await joinCluster(running.port, "a");
    expect(await printed((context) => nodeList({ dataDir, json: false }, context))).toMatch(
      /^NODE +STATE +LAST REPORT +ADDRESS .*\na +up +\d+ s ago +192\.0\.2\.1 .*10\.192\.1\.0\/24\n$/s,
    );
    const lines = [
      await printed((context) => nodeRemove({ dataDir }, "a", context)),
      await printed((context) => nodeRemove({ dataDir }, "a", context)),
      await printed((context) => nodeAllow({ dataDir }, "a", context)),
    ];
    expect(lines).toEqual([
      `Removed node "a"; let it in again with: clusternet node allow --data-dir ${dataDir} a\n`,
      'Node "a" was removed already\n',
      'Allowed node "a": it is a member again once it reports its status\n',
    ]);
    expect(await printed((context) => nodeAllow({ dataDir }, "a", context))).toBe(
      'Node "a" was allowed already\n',
    );
    expect(await printed((context) => nodeList({ dataDir, json: false }, context))).toMatch(
      /\na +allowed(?: +-){4}\n$/,
    );
    await joinCluster(running.port, "a");
    expect(await printed((context) => nodeAllow({ dataDir }, "a", context))).toBe(
      'Node "a" was allowed already\n',
    );
    expect(running.lines.filter((line) => line.startsWith("Node"))).toEqual([
      "Node joined",
      "Node announced itself",
      "Node removed",
      "Node allowed again",
      "Node joined",
      "Node announced itself",
    ]);
  });

  test("of a node that was allowed and has not joined yet, over a restart: removed, allowed again, in once it reports", async () => {
    const { dataDir } = options();
    const states = async (): Promise<unknown> => {
      const nodes = JSON.parse(await printed((context) => nodeList({ dataDir, json: true }, context)));
      return (nodes as readonly { id: string; state: string }[]).map(({ id, state }) => `${id} ${state}`);
    };
    const first = await startWithNodes();
    await printed((context) => nodeAllow({ dataDir }, "gone", context));
    await first.stop();
    const second = await start();
    expect(await states()).toEqual(["a up", "gone allowed"]);
    await printed((context) => nodeRemove({ dataDir }, "gone", context));
    expect(await states()).toEqual(["a up", "gone removed"]);
    await printed((context) => nodeAllow({ dataDir }, "gone", context));
    await joinCluster(second.port, "gone");
    await second.stop();
    await start();
    expect(await states()).toEqual(["a up", "gone up"]);
  });

  test("is named in refusals as it reaches this very Curator", async () => {
    const running = await start();
    const { dataDir } = options();
    await joinCluster(running.port, "a");
    const channel = createChannel(`127.0.0.1:${running.port}`);
    cleanups.push(() => channel.close());
    const report = async (id: string): Promise<unknown> =>
      await clientOf(channel, id).updateNodeStatus({ nodeId: id, status: statusBytes("192.0.2.2") });
    await report("b");
    const clusternet = { wireguardPubkey: keyOf(2), prefixes: [{ cidr: "10.192.1.0/24" }] };
    const overlapping = clientOf(channel, "b").updateNodeClusterNetworking({ clusternet });
    expect(await detailsOf(overlapping)).toEndWith(`clusternet node remove --data-dir ${dataDir} a`);
    await printed((context) => nodeRemove({ dataDir }, "a", context));
    expect(await detailsOf(report("a"))).toEndWith(
      `clusternet node allow --data-dir ${dataDir} a lets it in again`,
    );
  });

  test.each([
    ["remove", nodeRemove],
    ["allow", nodeAllow],
  ])("%s of a node that is not there: exit 78", async (verb, run) => {
    await start();
    const error = await thrownBy(() => run({ dataDir: options().dataDir }, "nobody", { stdout() {} }));
    expect([error.exit, error.message, error.hint]).toEqual([
      78,
      `Cannot ${verb} node "nobody": there is none of this ID`,
      `All of them: clusternet node list --data-dir ${options().dataDir}`,
    ]);
  });

  test.each([
    ["remove", nodeRemove],
    ["allow", nodeAllow],
  ])("%s that the Curator cannot store: exit 75, and where the cause is told", async (_verb, run) => {
    await startWithNodes();
    const { dataDir } = options();
    renameSync(join(dataDir, "curator.db"), join(dataDir, "elsewhere"));
    writeFileSync(join(dataDir, "curator.db"), "somebody else's");
    const id = run === nodeRemove ? "a" : "gone";
    const error = await thrownBy(() => run({ dataDir }, id, { stdout() {} }));
    expect([error.exit, error.message, error.hint]).toEqual([
      75,
      "Cannot store the change: try again",
      "The Curator's log says why it cannot, like a full disk",
    ]);
  });

  test("an ID may hold what a shell or a path makes something of", async () => {
    const running = await start();
    const { dataDir } = options();
    const id = "..?%2e;$(x)'";
    await joinCluster(running.port, id);
    expect(await printed((context) => nodeRemove({ dataDir }, id, context))).toBe(
      `Removed node "${id}"; let it in again with: clusternet node allow --data-dir ${dataDir} ` +
        String.raw`'..?%2e;$(x)'\'''` +
        "\n",
    );
  });
});

test("renderNodeTable() shows the first prefixes of many and how many more: one node does not widen every line", () => {
  const rest = { state: "up", externalAddress: "192.0.2.1", publicKey: null, lastReportAt: null } as const;
  const prefixes = Array.from({ length: 1024 }, (_, index) => `10.192.${index >> 2}.${(index & 3) * 64}/26`);
  expect(
    renderNodeTable(
      [
        { ...rest, id: "a", prefixes },
        { ...rest, id: "b", prefixes: prefixes.slice(0, 3) },
        { ...rest, id: "c", prefixes: prefixes.slice(0, 4) },
      ],
      new Date(0),
    ),
  ).toBe(
    `
NODE  STATE  LAST REPORT  ADDRESS    PUBLIC KEY  PREFIXES
a     up     -            192.0.2.1  -           10.192.0.0/26,10.192.0.64/26,10.192.0.128/26,+1021
b     up     -            192.0.2.1  -           10.192.0.0/26,10.192.0.64/26,10.192.0.128/26
c     up     -            192.0.2.1  -           10.192.0.0/26,10.192.0.64/26,10.192.0.128/26,+1
`.trimStart(),
  );
});

test.each<{ id: string; dataDir?: string; want: string }>([
  { id: "web-1", want: "clusternet node remove web-1" },
  {
    id: "-c",
    dataDir: "/srv/the Curator",
    want: "clusternet node remove --data-dir '/srv/the Curator' -- -c",
  },
  { id: "-b", want: "clusternet node remove -- -b" },
  { id: "--data-dir=/", want: "clusternet node remove -- '--data-dir=/'" },
  { id: "a;b'$(c)", want: String.raw`clusternet node remove 'a;b'\''$(c)'` },
])("nodeCommandOf() can be pasted: $want", ({ id, dataDir = defaultCuratorDirectory, want }) => {
  expect(nodeCommandOf(dataDir)("remove", id)).toBe(want);
  const print = want.replace("clusternet", String.raw`printf '%s\n'`);
  const argv = Bun.spawnSync(["sh", "-c", print]).stdout.toString().split("\n").slice(0, -1);
  expect(parseCommandLine(argv, {})).toMatchObject({ command: "node remove", id, options: { dataDir } });
});

test("renderNodeTable() gives a line a node, columns as wide as they must be", () => {
  const table = renderNodeTable(
    [
      {
        id: "metropolis-1",
        state: "up",
        externalAddress: "192.0.2.1",
        publicKey: keyOf(1),
        prefixes: ["192.0.2.1/32", "10.192.1.0/24"],
        lastReportAt: "2026-12-01T00:00:00.000Z",
      },
      {
        id: "b",
        state: "up",
        externalAddress: "2001:db8::1",
        publicKey: null,
        prefixes: [],
        lastReportAt: "2026-12-01T02:59:58.000Z",
      },
      { id: "c", state: "removed", externalAddress: null, publicKey: null, prefixes: [], lastReportAt: null },
    ],
    new Date("2026-12-01T03:04:05.000Z"),
  );
  expect(table).toBe(
    `
NODE          STATE    LAST REPORT  ADDRESS      PUBLIC KEY                                    PREFIXES
metropolis-1  up       3 h ago      192.0.2.1    AAAAAQcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=  192.0.2.1/32,10.192.1.0/24
b             up       4 min ago    2001:db8::1  -                                             -
c             removed  -            -            -                                             -
`.trimStart(),
  );
});
