/**
 * The program as a process: what it prints where, its exit status, what it leaves behind, and `down` and `status`
 * against a real interface in a network namespace of its own.
 */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parsePrivateKey, privateKeyFromBytes } from "../../src/core/key.ts";
import type { NodeId } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderWgConfig } from "../../src/core/wg-config.ts";
import { acquireLocks } from "../../src/host/lock.ts";
import { emptyState, readBootId, StateFile } from "../../src/host/state-file.ts";
import type { PrivateServer } from "../../src/host/private-socket.ts";
import { type Status, type StatusInput, buildStatus, noCurator } from "../../src/status.ts";
import { serveStatus } from "../../src/status-socket.ts";
import { hostIn, type HostIn } from "../lab/host-in.ts";
import { Lab } from "../lab/lab.ts";
import { waitFor } from "../lab/wait.ts";

const main = join(import.meta.dir, "../../src/main.ts");
/** Of every call here: the program is ended then, and the test fails by its exit status. */
const limitMs = 20_000;

let directory = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "clusternet-cli-"));
});
afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

interface Outcome {
  readonly exit: number;
  readonly stdout: string;
  readonly stderr: string;
}

async function clusternet(
  args: readonly string[],
  { env = {}, inside }: { readonly env?: Record<string, string>; readonly inside?: HostIn } = {},
): Promise<Outcome> {
  const enter = inside === undefined ? [] : ["nsenter", "-t", String(inside.pid), "-n", "-m", "--"];
  const child = Bun.spawn([...enter, process.execPath, main, ...args], {
    env: { PATH: process.env["PATH"] ?? "", ...env },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    timeout: limitMs,
    killSignal: "SIGKILL",
  });
  const [stdout, stderr, exit] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { exit, stdout, stderr };
}

test.each<{ args: readonly string[]; env?: Record<string, string>; want: Outcome }>([
  {
    args: ["run", "--frob"],
    want: {
      exit: 64,
      stdout: "",
      stderr:
        'Cannot use flag "--frob": `clusternet run` has none of that name, see `clusternet run --help`\n',
    },
  },
  {
    args: ["status"],
    env: { CLUSTERNET_JSON: "yes" },
    want: {
      exit: 64,
      stdout: "",
      stderr: 'Cannot use CLUSTERNET_JSON "yes": expected 1, 0, true or false\n',
    },
  },
  {
    args: [
      "run",
      "--insecure",
      "--node-id",
      "a",
      "--curator",
      "127.0.0.1",
      "--external-address",
      "10.192.1.1",
    ],
    want: {
      exit: 78,
      stdout: "",
      stderr:
        'Cannot use --external-address "10.192.1.1": it is inside ClusterNet 10.192.0.0/11\n' +
        "  hint: Give the address at which other nodes reach this one outside the mesh\n",
    },
  },
])("clusternet $args ends with one report and its exit status", async ({ args, env, want }) => {
  expect(await clusternet(args, env === undefined ? {} : { env })).toEqual(want);
});

test("help and version go to stdout, the usage of no command to stderr", async () => {
  const [help, version, none] = await Promise.all([
    clusternet(["--help"]),
    clusternet(["--version"]),
    clusternet([]),
  ]);
  expect([help.exit, version.exit, none.exit]).toEqual([0, 0, 64]);
  expect([help.stderr, version.stderr, none.stdout]).toEqual(["", "", ""]);
  expect(none.stderr).toBe(help.stdout);
  expect(version.stdout).toMatch(/^clusternet \S+ \(commit \S+, linux-\S+\)\n$/);
});

test("a reader that goes away is no error", async () => {
  // The shell waits for the reader first, so that the pipe is broken when the program starts to write.
  const script = `mkfifo "$1/out"; exec 3<>"$1/out" 4>"$1/out" 3<&-; "$2" "$3" run --help >&4; echo "exit $?"`;
  const child = Bun.spawn(["bash", "-c", script, "bash", directory, process.execPath, main], {
    stdout: "pipe",
    stderr: "pipe",
    timeout: limitMs,
  });
  expect([await child.stdout.text(), await child.stderr.text()]).toEqual(["exit 0\n", ""]);
});

test("a stdout that is closed is said, with status 1, where there was something to write", async () => {
  const script = 'for flag in --version --frob; do "$1" "$2" "$flag" >&-; echo "exit $?" >&2; done';
  const child = Bun.spawn(["sh", "-c", script, "sh", process.execPath, main], {
    stderr: "pipe",
    timeout: limitMs,
  });
  expect(await child.stderr.text()).toBe(
    "Cannot write on standard output: it is closed\nexit 1\n" +
      'Cannot use flag "--frob": `clusternet` has none of that name, see `clusternet --help`\nexit 64\n',
  );
});

test("a full disk behind stdout is said, with status 1", async () => {
  const child = Bun.spawn([process.execPath, main, "--help"], {
    stdout: Bun.file("/dev/full"),
    stderr: "pipe",
    timeout: limitMs,
  });
  expect([await child.exited, await child.stderr.text()]).toEqual([
    1,
    "Cannot write on standard output\n  because: ENOSPC: no space left on device, write\n",
  ]);
});

test("of each Curator that cannot be reached it is said what was found there, and what to do", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  await host.sh("ip link set lo up");
  await host.sh("ip route add unreachable 2001:db8::/32");
  const curators = ["127.0.0.1:1", "203.0.113.5", "[2001:db8::5]", "curator.invalid"];
  const { exit, stderr } = await clusternet(
    [
      "run",
      ..."--insecure --insecure-anywhere --node-id a --wireguard userspace --external-address 192.0.2.1".split(
        " ",
      ),
      ..."--once --dry-run --timeout 2 --data-dir".split(" "),
      join(host.directory, "data"),
      ...curators.flatMap((each) => ["--curator", each]),
    ],
    { inside: host },
  );
  expect(exit).toBe(75);
  for (const each of [
    'Cannot reach Curator "127.0.0.1:1": connection refused',
    'Cannot reach Curator "203.0.113.5:7835": this host has no route to it',
    'Cannot reach Curator "[2001:db8::5]:7835": this host has no route to it',
    'Cannot reach Curator "curator.invalid:7835": no name server answers',
    "hint: Does a Curator run there, on this address and port, and does no firewall refuse it?",
    "hint: Check the network of this host, and the address: `ip route get 203.0.113.5` shows the way",
  ]) {
    expect(stderr).toContain(each);
  }
}, 30_000);

test.each(["SIGTERM", "SIGINT"] as const)(
  "%s ends the Curator with status 0, and its log is JSON lines",
  async (signal) => {
    const flags = ["--insecure", "--listen", "127.0.0.1:0", "--store", "memory", "--data-dir", directory];
    const child = Bun.spawn([process.execPath, main, "curator", ...flags, "--log-format", "json"], {
      env: { PATH: process.env["PATH"] ?? "" },
      stdout: "pipe",
      stderr: "pipe",
      timeout: limitMs,
      killSignal: "SIGKILL",
    });
    let log = "";
    for await (const chunk of child.stderr.pipeThrough(new TextDecoderStream())) {
      log += chunk;
      if (log.includes("127.0.0.1:")) child.kill(signal);
    }
    expect([await child.exited, await child.stdout.text()]).toEqual([0, ""]);
    for (const line of log.trimEnd().split("\n")) {
      expect(JSON.parse(line)).toMatchObject({ time: expect.any(String), level: expect.any(String) });
    }
  },
);

// CASES 31.
test.each(["x".repeat(16), "a/b", "a b", ".", "", "all", "-x"])(
  "run refuses interface %j and creates nothing",
  async (name) => {
    const data = join(directory, "data");
    const { exit, stdout, stderr } = await clusternet([
      "run",
      "--insecure",
      "--node-id",
      "a",
      "--curator",
      "127.0.0.1:1",
      "--data-dir",
      data,
      "--interface",
      name,
    ]);
    expect([exit, stdout, stderr.split("\n").length]).toEqual([64, "", 2]);
    expect(stderr).toContain("expected 1 to 15 characters");
    expect(existsSync(data)).toBe(false);
  },
);

test("pubkey makes a key that only the owner can read, and prints the same public key again", async () => {
  const data = join(directory, "a/data");
  const first = await clusternet(["pubkey"], { env: { CLUSTERNET_DATA_DIR: data } });
  const privateKey = parsePrivateKey(readFileSync(join(data, "private.key"), "utf8"));
  expect(first).toEqual({ exit: 0, stdout: `${privateKey.publicKey}\n`, stderr: "" });
  expect([statSync(data).mode & 0o777, statSync(join(data, "private.key")).mode & 0o777]).toEqual([
    0o700, 0o600,
  ]);
  expect(readdirSync(data)).toEqual(["private.key"]);
  chmodSync(join(data, "private.key"), 0o644);
  const second = await clusternet(["pubkey", "--data-dir", data]);
  expect([second.exit, second.stdout]).toEqual([0, first.stdout]);
  expect(second.stderr).toMatch(/^\S+Z WARN {2}.*private\.key.* problem=key-mode\n$/);
  expect(second.stderr).not.toContain(privateKey.reveal());
  expect(statSync(join(data, "private.key")).mode & 0o777).toBe(0o600);
});

test("pubkey works beside a running agent", async () => {
  const locks = acquireLocks({ dataDirectory: directory, interfaceName: `t${process.pid}` });
  try {
    expect(
      (await clusternet(["pubkey", "--data-dir", directory, "--interface", `t${process.pid}`])).exit,
    ).toBe(0);
  } finally {
    locks.release();
  }
});

// CASES 27 and 29: whatever is wrong with the key, it is named and no piece of it is shown.
const secret = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk";
test.each([
  { name: "a key with a typo", make: (path: string) => writeFileSync(path, `${secret}!\n`, { mode: 0o600 }) },
  {
    name: "a key with a character too many",
    make: (path: string) => writeFileSync(path, `${secret}=x\n`, { mode: 0o600 }),
  },
  {
    name: "a key cut short",
    make: (path: string) => writeFileSync(path, secret.slice(0, 20), { mode: 0o600 }),
  },
  { name: "an empty file", make: (path: string) => writeFileSync(path, "", { mode: 0o600 }) },
  { name: "a directory", make: (path: string) => mkdirSync(path) },
])("pubkey refuses $name with 78 and leaves it as it is", async ({ make }) => {
  const path = join(directory, "private.key");
  make(path);
  const before = lstatSync(path);
  const { exit, stdout, stderr } = await clusternet(["pubkey", "--data-dir", directory]);
  expect([exit, stdout]).toEqual([78, ""]);
  expect(stderr).toContain(path);
  expect(stderr).toContain("hint: ");
  expect(stderr).not.toContain(secret.slice(0, 10));
  expect([lstatSync(path).ino, lstatSync(path).mtimeMs]).toEqual([before.ino, before.mtimeMs]);
});

test("pubkey in a data directory that cannot be made ends with 78", async () => {
  const { exit, stderr } = await clusternet(["pubkey", "--data-dir", "/proc/none/data"]);
  expect(exit).toBe(78);
  expect(stderr).toContain('"/proc/none/data"');
});

function statusOf(rest: Partial<StatusInput> = {}) {
  return buildStatus({
    version: "0.1.0",
    agent: { running: true, pid: process.pid, notReady: [] },
    node: { announced: [] },
    curator: noCurator,
    interfaceName: "m",
    mesh: { peers: [] },
    listenPort: 7838,
    problems: [],
    now: new Date(),
    ...rest,
  });
}

const nothing = (): readonly string[] => [];

/** Answers on the socket of interface "m" as an agent that is well. */
function serveAs(status: () => Status): PrivateServer {
  return serveStatus(join(directory, "m.sock"), {
    status,
    unhealthy: nothing,
    notReady: nothing,
    remarks: nothing,
  });
}

test("status asks the running agent, and --check looks at its problems", async () => {
  const place = ["--data-dir", directory, "--interface", "m"];
  let status = statusOf();
  const server = serveAs(() => status);
  try {
    const json = await clusternet(["status", "--json", "--check", ...place]);
    expect({ ...json, stdout: JSON.parse(json.stdout) as unknown }).toEqual({
      exit: 0,
      stdout: status,
      stderr: "",
    });
    status = statusOf({ problems: [{ kind: "curator-unreachable", message: "Cannot reach it" }] });
    const text = await clusternet(["status", "--check", ...place]);
    expect([text.exit, text.stderr]).toEqual([3, ""]);
    expect(text.stdout).toStartWith("problems: 1\n  curator-unreachable  -  -  Cannot reach it\n");
    expect((await clusternet(["status", ...place])).exit).toBe(0);
  } finally {
    await server.stop();
  }
});

// CASES 44.
test("status and status --json list 10,000 peers within two seconds each", async () => {
  const { publicKey } = privateKeyFromBytes(new Uint8Array(32).fill(2));
  const peers = Array.from({ length: 10_000 }, (_, index) => ({
    nodeId: `node-${index}` as NodeId,
    publicKey,
    address: parseAddress("192.0.2.2"),
    prefixes: [parsePrefix("10.192.2.0/24"), parsePrefix("192.0.2.2/32")],
  }));
  const status = statusOf({ mesh: { peers } });
  const server = serveAs(() => status);
  try {
    for (const flags of [[], ["--json"]]) {
      const startedMs = performance.now();
      const { exit, stdout } = await clusternet([
        "status",
        "--data-dir",
        directory,
        "--interface",
        "m",
        ...flags,
      ]);
      const tookMs = performance.now() - startedMs;
      expect([exit, stdout.match(/\bnode-\d+\b/g)?.length]).toEqual([0, 10_000]);
      expect(tookMs).toBeLessThan(2000);
    }
  } finally {
    await server.stop();
  }
});

function askStatus(...flags: readonly string[]): Promise<Outcome> {
  return clusternet(["status", "--check", "--data-dir", directory, "--interface", "m", ...flags]);
}

describe("a process that was stopped and holds the socket", () => {
  const source = join(import.meta.dir, "../../src");

  /** One that serves on the socket, and then does nothing any more. With `locks` it holds the place as an agent does. */
  async function stopped(
    name: string,
    { locks = false, waiting = 0 }: { readonly locks?: boolean; readonly waiting?: number },
  ): Promise<AsyncDisposable & { readonly pid: number }> {
    const path = join(directory, name);
    const places = { dataDirectory: directory, interfaceName: "m" };
    const code = `
      import { acquireLocks } from ${JSON.stringify(join(source, "host/lock.ts"))};
      if (${locks}) acquireLocks(${JSON.stringify(places)});
      Bun.serve({ unix: ${JSON.stringify(path)}, fetch: () => new Response("") });
      console.log("up");`;
    const child = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe", stderr: "inherit" });
    await child.stdout.getReader().read();
    child.kill("SIGSTOP");
    const sockets = Array.from({ length: waiting }, () => connect(path).on("error", () => undefined));
    return {
      pid: child.pid,
      async [Symbol.asyncDispose]() {
        for (const socket of sockets) socket.destroy();
        child.kill("SIGKILL");
        await child.exited;
      },
    };
  }

  test("status is not held up by an agent, calls it running, and names its process", async () => {
    await using agent = await stopped("m.sock", { locks: true });
    const [text, json] = await Promise.all([askStatus(), askStatus("--json")]);
    expect([text.exit, text.stderr, json.exit]).toEqual([3, "", 3]);
    const { agent: found, node }: Status = JSON.parse(json.stdout);
    const asked = `the agent at socket "${directory}/m.sock" cannot be asked: it did not answer within 2 s`;
    expect([found, node.announced]).toEqual([
      {
        running: true,
        pid: agent.pid,
        startedAt: null,
        ready: false,
        reasons: [asked],
        unhealthy: [
          expect.stringMatching(
            new RegExp(
              `^process ${agent.pid} \\(".*\\) is stopped: \`kill -CONT ${agent.pid}\` lets it go on$`,
            ),
          ),
        ],
      },
      null,
    ]);
    const indent = " ".repeat(13);
    expect(text.stdout).toStartWith(
      `agent:       does not answer, process ${agent.pid}\n${indent}${asked}\n${indent}process ${agent.pid} `,
    );
    expect(text.stdout).toContain("\ncurator:     unknown: no agent could be asked\n");
  });

  test("status does not know of what is no agent whether one runs", async () => {
    await using _stranger = await stopped("m.sock", {});
    const { exit, stdout } = await askStatus("--json");
    const { agent }: Status = JSON.parse(stdout);
    expect([exit, agent.running, agent.pid, agent.unhealthy]).toEqual([3, null, null, []]);
  });

  test("of a Curator `node list` says so, also when the socket takes nobody any more", async () => {
    await using curator = await stopped("curator.sock", { locks: true, waiting: 600 });
    const { exit, stderr } = await clusternet(["node", "list", "--data-dir", directory]);
    expect(exit).toBe(69);
    expect(stderr).toStartWith(
      `Cannot reach the Curator at socket "${directory}/curator.sock": too many wait for its answer already\n` +
        `  hint: It is there, but process ${curator.pid} (`,
    );
    expect(stderr).toEndWith(` is stopped: \`kill -CONT ${curator.pid}\` lets it go on\n`);
  });
});

test("status reports that others may write the directory to which a link of the credentials leads", async () => {
  const [elsewhere, credentials] = [join(directory, "elsewhere"), join(directory, "credentials")];
  for (const each of [elsewhere, credentials]) mkdirSync(each, { mode: 0o700 });
  writeFileSync(join(elsewhere, "ca.pem"), "");
  symlinkSync(join(elsewhere, "ca.pem"), join(credentials, "ca.pem"));
  chmodSync(elsewhere, 0o777);
  const { stdout } = await clusternet(["status", "--data-dir", directory, "--interface", "m"]);
  expect(stdout).toContain(`Directory "${elsewhere}" has mode 0777: `);
});

test("down refuses with 75 while an agent holds the place, and names its process", async () => {
  const interfaceName = `t${process.pid}`;
  const locks = acquireLocks({ dataDirectory: directory, interfaceName });
  try {
    const places = [
      ["--data-dir", directory],
      ["--data-dir", join(directory, "none")],
    ];
    for (const place of places) {
      const { exit, stdout, stderr } = await clusternet(["down", ...place, "--interface", interfaceName]);
      expect([exit, stdout]).toEqual([75, ""]);
      expect(stderr).toContain(`process ${process.pid}`);
      expect(stderr).toMatch(/\n {2}hint: Stop that process first(?: \(ss .*\))?, then run this again\n$/);
    }
  } finally {
    locks.release();
  }
});

test("down holds the interface while it works, also without a data directory", async () => {
  const [seen, programs] = [join(directory, "sockets"), join(directory, "programs")];
  mkdirSync(programs);
  const script = `#!/bin/sh\ncat /proc/self/net/unix >>'${seen}'\nexec ${Bun.which("ip")} "$@"\n`;
  writeFileSync(join(programs, "ip"), script, { mode: 0o755 });
  const interfaceName = `d${process.pid}`;
  const { exit, stderr } = await clusternet(
    ["down", "--data-dir", join(directory, "none"), "--interface", interfaceName],
    { env: { PATH: `${programs}:${process.env["PATH"]}` } },
  );
  expect([exit, stderr]).toEqual([0, ""]);
  expect(readFileSync(seen, "utf8")).toMatch(new RegExp(` @clusternet/${interfaceName}$`, "m"));
});

test("down says what is wrong with the key and the state file in one line each, and paths as they are", async () => {
  const [key, state] = [join(directory, "private.key"), join(directory, "m.state")];
  writeFileSync(key, "", { mode: 0o600 });
  writeFileSync(state, "{", { mode: 0o600 });
  const { exit, stderr } = await clusternet(["down", "--data-dir", directory, "--interface", "m"]);
  const lines = stderr.split("\n").map((line) => line.replace(/^\S+ +/, ""));
  expect([exit, lines]).toEqual([
    0,
    [
      `WARN  State file cannot be used, going on without what it remembered file=${state} reason="it is not JSON"`,
      `WARN  Cannot use private key "${key}": it is empty, expected 44 characters of base64; ` +
        "hint: Put the right key back, or remove the file to get a new key: other nodes will see this node's public key change",
      "",
    ],
  ]);
});

test("down without iproute2 ends with 69 and says what is missing", async () => {
  const { exit, stderr } = await clusternet(["down", "--data-dir", directory], { env: { PATH: directory } });
  expect([exit, stderr]).toEqual([69, 'Cannot run "ip": not found in PATH\n  hint: Install iproute2\n']);
});

/** Everything that `down` could touch, as the kernel shows it. */
async function picture(host: HostIn): Promise<string> {
  const parts = [
    "ip -o link show",
    "ip route show table all",
    "ip -6 route show table all",
    "ip -o address show",
  ];
  const shown = [];
  for (const part of parts) shown.push(await host.sh(part));
  return shown.join("\n").replaceAll(/ (qdisc|state|valid_lft|expires) \S+/g, "");
}

test("status reads a real interface without an agent, and down takes away only what is ours, twice", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const data = join(host.directory, "data");
  const place = ["--data-dir", data, "--interface", "mesh"];
  // What somebody else put there.
  await host.sh("ip address add 203.0.113.7/32 dev lo");
  await host.sh("ip route add blackhole 10.0.0.0/8");
  const before = await picture(host);

  expect((await clusternet(["pubkey", ...place], { inside: host })).exit).toBe(0);
  const key = parsePrivateKey(readFileSync(join(data, "private.key"), "utf8"));
  const peer = {
    nodeId: "b" as NodeId,
    publicKey: privateKeyFromBytes(new Uint8Array(32).fill(2)).publicKey,
    address: parseAddress("192.0.2.2"),
    prefixes: [parsePrefix("10.192.2.0/24")],
  };
  const text = renderWgConfig({ listenPort: 7838, mesh: { peers: [peer] } }, key);
  writeFileSync(join(data, "mesh.conf"), text, { mode: 0o600 });
  await host.run(["wireguard-go", "mesh"], { detached: true });
  await host.run(["wg", "setconf", "mesh", join(data, "mesh.conf")]);
  await host.sh("ip link set dev mesh group 9 mtu 1420 up");
  await host.sh("ip route add 10.192.0.0/11 dev mesh proto 129");
  await host.sh("ip route add unreachable 10.192.0.0/11 proto 129 metric 4294967295");

  const status = await clusternet(["status", "--json", ...place], { inside: host });
  expect([status.exit, status.stderr]).toEqual([0, ""]);
  expect(status.stdout).not.toContain(key.reveal());
  expect(JSON.parse(status.stdout)).toMatchObject({
    agent: { running: false, reasons: [`no agent runs on data directory "${data}" with interface "mesh"`] },
    node: { publicKey: key.publicKey },
    source: "file",
    interface: { name: "mesh", implementation: "userspace", listenPort: 7838, mtu: 1420, up: true },
    peers: [{ id: "b", endpoint: "192.0.2.2:7838", prefixes: ["10.192.2.0/24"], state: "never" }],
    problems: [],
  });

  const files = readdirSync(data).toSorted();
  const first = await clusternet(["down", ...place], { inside: host });
  expect([first.exit, first.stdout]).toEqual([0, ""]);
  expect(first.stderr).toContain("ip link delete dev mesh");
  expect(await picture(host)).toBe(before);
  expect(readdirSync(data).toSorted()).toEqual(expect.arrayContaining(files));
  expect(readFileSync(join(data, "mesh.conf"), "utf8")).toBe(text);
  const second = await clusternet(["down", ...place], { inside: host });
  expect(second).toEqual({ exit: 0, stdout: "", stderr: "" });
  expect(await picture(host)).toBe(before);
}, 30_000);

test("status without an agent says that the data directory cannot be written: what is in it may be old", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const data = join(host.directory, "data");
  const messages = async (): Promise<string[]> => {
    const { stdout } = await clusternet(["status", "--json", "--data-dir", data], { inside: host });
    const { problems } = JSON.parse(stdout) as Status;
    return problems.filter(({ kind }) => kind === "file-unwritable").map(({ message }) => message);
  };
  const of = (reason: string): string =>
    `Cannot write in data directory "${data}": ${reason}; hint: what is here of its files may be older than the interface`;
  mkdirSync(data);
  await host.sh(`mount -t tmpfs -o size=64k,mode=0700 tmpfs ${data}`);
  expect(await messages()).toEqual([]);
  await host.sh(`mount -o remount,ro ${data}`);
  expect(await messages()).toEqual([of("EROFS: read-only file system")]);
  await host.sh(`mount -o remount,rw ${data}`);
  await host.run(["sh", "-c", `cat /dev/zero >${data}/full || true`]);
  expect(await messages()).toEqual([of("ENOSPC: no space left on device")]);
}, 30_000);

/** Our Curator on the host's loopback, and `run --once` of nodes beside it. */
async function withOurCurator(host: HostIn) {
  await host.sh("ip link set lo up");
  const data = join(host.directory, "curator");
  const child = Bun.spawn(
    [
      ..."nsenter -n -m -t".split(" "),
      String(host.pid),
      "--",
      process.execPath,
      main,
      ..."curator --insecure --store memory --data-dir".split(" "),
      data,
    ],
    { env: { PATH: process.env["PATH"] ?? "" }, stdout: "ignore", stderr: "ignore" },
  );
  await waitFor(() => existsSync(join(data, "curator.sock")), "the Curator");
  return {
    once: (id: string, prefixes: readonly string[], ...flags: readonly string[]): Promise<Outcome> => {
      const number = id.charCodeAt(0);
      return clusternet(
        [
          ...`run --once --insecure --node-id ${id} --curator 127.0.0.1:7835 --interface ${id}`.split(" "),
          ...`--wireguard userspace --external-address 192.0.2.${number} --listen-port 70${number}`.split(
            " ",
          ),
          "--data-dir",
          join(host.directory, id),
          ...prefixes.flatMap((prefix) => ["--pod-prefix", prefix]),
          ...flags,
        ],
        { inside: host },
      );
    },
    /** IDs of all nodes that it knows. */
    nodes: async (): Promise<readonly string[]> => {
      const { stdout } = await clusternet(["node", "list", "--json", "--data-dir", data]);
      return (JSON.parse(stdout) as readonly { readonly id: string }[]).map(({ id }) => id);
    },
    async [Symbol.asyncDispose]() {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}

const linesOf = ({ stderr }: Outcome): readonly string[] => stderr.trimEnd().split("\n");

test("run --once ends with 3 when it is done but a prefix is not announced, and says so last; so does --dry-run of what it can tell", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  await using curator = await withOurCurator(host);
  const once = (id: string, ...prefixes: readonly string[]): Promise<Outcome> =>
    curator.once(id, prefixes, "--report-status", "on");
  expect((await once("b", "10.192.2.0/24")).exit).toBe(0);
  const outside = ["10.192.1.0/24", "172.16.0.0/24"];
  const why = `Cannot announce pod prefix 172.16.0.0/24 of node "a": it lies outside ClusterNet 10.192.0.0/11`;
  const dry = await curator.once("a", outside, "--dry-run");
  expect([dry.exit, linesOf(dry).at(-1)]).toEqual([3, `Not all of this node would be announced: ${why}`]);
  expect(dry.stdout).toContain(`# prefix-outside: ${why}\n`);
  const found = "The mesh is applied, but not all of this node is announced: ";
  const [refused, left] = [await once("a", "10.192.1.0/24", "10.192.2.0/25"), await once("a", ...outside)];
  expect([refused.exit, left.exit]).toEqual([3, 3]);
  expect(linesOf(refused).at(-1)).toStartWith(
    `${found}Cannot announce prefix 10.192.2.0/25: the Curator refuses it`,
  );
  expect(linesOf(left).at(-1)).toBe(`${found}${why}`);
  expect((await curator.once("a", ["10.192.1.0/24"], "--dry-run")).exit).toBe(0);
  expect((await once("a", "10.192.1.0/24")).exit).toBe(0);
}, 30_000);

test("run --once tells the Curator nothing of a node whose own host is not ready for it", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  await using curator = await withOurCurator(host);
  const once = (id: string, ...flags: readonly string[]): Promise<Outcome> => {
    const prefix = `10.192.${id.charCodeAt(0)}.0/24`;
    return curator.once(id, [prefix], "--report-status", "on", "--timeout", "2", ...flags);
  };
  // A peer of the others, which is on an interface before anything else of it is.
  expect((await once("Z")).exit).toBe(0);
  await host.run(["wireguard-go", "holder"], { detached: true });
  await host.sh("wg set holder listen-port 7097");
  await host.sh("ip link set holder up");
  const taken =
    'Cannot listen on UDP port 7097 for interface "a": the port is in use (ss -ulpn shows by whom)';
  const dry = await once("a", "--dry-run");
  expect([dry.exit, linesOf(dry).at(-1), dry.stdout]).toEqual([
    69,
    taken,
    expect.stringContaining(`# port-in-use: ${taken}\n`),
  ]);
  const refused = await once("a");
  expect([refused.exit, linesOf(refused).at(-1)]).toEqual([69, taken]);
  // Of the status socket.
  const socket = join(host.directory, "b", "b.sock");
  mkdirSync(socket, { recursive: true, mode: 0o700 });
  const blocked = await once("b");
  expect([blocked.exit, linesOf(blocked).slice(-2)]).toEqual([
    75,
    [
      "Cannot finish within 2 s: not every file could be written; before that this node is not announced",
      `  because: Cannot listen on socket "${socket}": it is a directory, expected nothing or a socket; hint: Remove it`,
    ],
  ]);
  // Somebody else's interface is where a run ends, also with the port held: it never comes to it.
  await host.sh("wg set holder listen-port 7099");
  await host.sh("ip link add c type bridge");
  const inTheWay = await once("c");
  expect([inTheWay.exit, inTheWay.stderr]).toEqual([
    75,
    expect.stringContaining("because: Cannot use interface"),
  ]);
  const dryInTheWay = await once("c", "--dry-run");
  expect([dryInTheWay.exit, linesOf(dryInTheWay).at(-1), dryInTheWay.stdout]).toEqual([
    75,
    expect.stringMatching(/^Cannot use interface "c": a link of this name is there/),
    expect.stringContaining("# interface-foreign:"),
  ]);
  expect(dryInTheWay.stdout).not.toContain("port-in-use");
  expect(await curator.nodes()).toEqual(["Z"]);
  await host.sh("ip link delete holder");
  expect((await once("a", "--dry-run")).exit).toBe(0);
  expect((await once("a")).exit).toBe(0);
  // Its own interface has the port now.
  expect((await once("a", "--dry-run")).exit).toBe(0);
  expect(await curator.nodes()).toEqual(["Z", "a"]);
}, 30_000);

test("run --once that waits for a status of a node which the Curator does not know says so, and what to do", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  await using curator = await withOurCurator(host);
  const late = await curator.once("a", ["10.192.1.0/24"], "--timeout", "2");
  expect([late.exit, linesOf(late).slice(-3)]).toEqual([
    75,
    [
      "Cannot finish within 2 s: the announcement has not been accepted",
      '  because: Cannot announce to Curator "127.0.0.1:7835": FAILED_PRECONDITION: Cannot take announcement of node "a": it has not reported its status yet',
      '  hint: Is there a node "a" in this cluster? If nobody else reports its status this node does, 10 s after the ' +
        "Curator has first said so: give --timeout that much more, or --report-status on to report it at once",
    ],
  ]);
}, 30_000);

test("run with a relative data directory gives the interface the key that is in it", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const flags = [
    "--insecure",
    "--node-id",
    "a",
    "--curator",
    "127.0.0.1:1",
    "--external-address",
    "192.0.2.1",
  ];
  const inside = ["nsenter", "-t", String(host.pid), "-n", "-m", "--"];
  const start = ["sh", "-c", 'cd "$0" && exec "$@"', host.directory];
  const child = Bun.spawn(
    [
      ...inside,
      ...start,
      process.execPath,
      main,
      "run",
      "--data-dir",
      "data",
      "--wireguard",
      "userspace",
      ...flags,
    ],
    { env: { PATH: process.env["PATH"] ?? "" }, stdout: "ignore", stderr: "pipe", timeout: limitMs },
  );
  try {
    const shown = await waitFor(
      () =>
        host.run(["wg", "show", "clusternet", "public-key"]).then(
          (text) => text.trim() !== "(none)" && text.trim(),
          () => false,
        ),
      "the key on the interface",
    );
    const key = parsePrivateKey(readFileSync(join(host.directory, "data", "private.key"), "utf8"));
    expect(shown).toBe(key.publicKey);
    child.kill("SIGTERM");
    expect([await child.exited, readdirSync(join(host.directory, "data")).includes("private.key")]).toEqual([
      0,
      true,
    ]);
    expect(await child.stderr.text()).not.toContain("apply-failed");
  } finally {
    child.kill("SIGKILL");
    await child.exited;
  }
}, 30_000);

test.each([
  { name: "of another ClusterNet, and the interface that shows it,", network: "10.64.0.0/16", device: true },
  { name: "of the default ClusterNet", network: "10.192.0.0/11", device: false },
  { name: "of a part of the default ClusterNet", network: "10.193.0.0/16", device: false },
])(
  "down with a damaged state file takes away the guard $name",
  async ({ network, device }) => {
    await using lab = await Lab.create();
    const host = await hostIn(lab);
    const data = join(host.directory, "data");
    const place = ["--data-dir", data, "--interface", "mesh"];
    const before = await picture(host);
    expect((await clusternet(["pubkey", ...place], { inside: host })).exit).toBe(0);
    writeFileSync(join(data, "mesh.state"), "{");
    if (device) {
      await host.run(["wireguard-go", "mesh"], { detached: true });
      await host.run(["wg", "set", "mesh", "private-key", join(data, "private.key")]);
      await host.sh("ip link set dev mesh group 9 up");
      await host.sh(`ip route add ${network} dev mesh proto 129`);
    }
    await host.sh(`ip route add unreachable ${network} proto 129 metric 4294967295`);
    const { exit, stderr } = await clusternet(["down", ...place], { inside: host });
    expect([exit, stderr]).toEqual([0, expect.stringContaining("State file cannot be used")]);
    expect(await picture(host)).toBe(before);
  },
  30_000,
);

test("down without what an earlier run remembered says which addresses may be left, and how to take them away", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const data = join(host.directory, "data");
  const place = ["--data-dir", data, "--interface", "mesh"];
  expect((await clusternet(["pubkey", ...place], { inside: host })).exit).toBe(0);
  for (const address of ["10.192.1.1/32", "203.0.113.7/32"])
    await host.sh(`ip address add ${address} dev lo`);
  const { exit, stderr } = await clusternet(["down", ...place], { inside: host });
  expect([exit, stderr]).toEqual([
    0,
    expect.stringMatching(
      /^\S+ WARN {2}An address inside the cluster network stays on lo: .*: ip address delete 10\.192\.1\.1\/32 dev lo address=10\.192\.1\.1\n$/,
    ),
  ]);
  expect(await host.sh("ip -o address show dev lo")).toContain(" 10.192.1.1/32 ");
}, 30_000);

test("down says why it could not take an address away, and only of another that nothing remembers it", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const [data, programs] = [join(host.directory, "data"), join(host.directory, "programs")];
  const place = ["--data-dir", data, "--interface", "mesh"];
  expect((await clusternet(["pubkey", ...place], { inside: host })).exit).toBe(0);
  await new StateFile(join(data, "mesh.state"), await readBootId()).write({
    ...emptyState,
    loopbackAddresses: [parseAddress("10.192.1.1")],
    clusterNets: [parsePrefix("10.192.0.0/11")],
  });
  for (const address of ["10.192.1.1/32", "10.192.2.1/32"]) await host.sh(`ip address add ${address} dev lo`);
  mkdirSync(programs);
  const script = `#!/bin/sh\n[ "$1 $2" = "address delete" ] && { echo refused >&2; exit 2; }\nexec ${Bun.which("ip")} "$@"\n`;
  writeFileSync(join(programs, "ip"), script, { mode: 0o755 });
  const env = { PATH: `${programs}:${process.env["PATH"]}` };
  const { exit, stderr } = await clusternet(["down", ...place], { inside: host, env });
  const warnings = stderr
    .trimEnd()
    .split("\n")
    .map((line) => line.replace(/^\S+ +/, ""));
  expect([exit, warnings]).toEqual([
    1,
    [
      expect.stringMatching(/^WARN {2}An address .* address=10\.192\.2\.1$/),
      expect.stringMatching(/^WARN {2}Cannot remove address 10\.192\.1\.1\b.* refused/),
    ],
  ]);
}, 30_000);

test("down takes away an interface that an agent was making when it was killed, and had no key yet", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  const data = join(host.directory, "data");
  const before = await picture(host);
  const place = ["--data-dir", data, "--interface", "mesh"];
  expect((await clusternet(["pubkey", ...place], { inside: host })).exit).toBe(0);
  const state = { ...emptyState, interfaceName: "mesh" };
  await new StateFile(join(data, "mesh.state"), await readBootId()).write(state);
  // As a crash leaves it half written, with the key in it.
  const leftover = join(data, ".mesh.conf.0123456789abcdef.clusternet-tmp");
  writeFileSync(leftover, "[Interface]\n", { mode: 0o600 });
  await host.run(["wireguard-go", "mesh"], { detached: true });
  expect(await picture(host)).not.toBe(before);
  const { exit, stderr } = await clusternet(["down", ...place], { inside: host });
  expect([exit, stderr]).toEqual([0, expect.stringContaining("Done: ip link delete dev mesh")]);
  expect(await picture(host)).toBe(before);
  expect(existsSync(leftover)).toBe(false);
}, 30_000);

test("down leaves an interface that is not ours alone, and says so", async () => {
  await using lab = await Lab.create();
  const host = await hostIn(lab);
  await host.sh("ip link add mesh type bridge");
  const before = await picture(host);
  const place = ["--data-dir", join(host.directory, "none"), "--interface", "mesh"];
  const { exit, stderr } = await clusternet(["down", ...place], { inside: host });
  expect(exit).toBe(0);
  expect(stderr).toContain("problem=interface-foreign");
  expect(await picture(host)).toBe(before);
  expect(readdirSync(host.directory)).toEqual([]);
  const status = await clusternet(["status", "--check", ...place], { inside: host });
  expect([status.exit, status.stdout.split("\n")[1]?.trim().split(" ")[0]]).toEqual([3, "interface-foreign"]);
}, 30_000);
