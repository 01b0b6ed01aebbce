/**
 * The private keys in runs full of failures: nowhere but in the files that hold them (case 27). Looked for in every
 * line of every log, in what the commands print, in arguments and environments, in files, in crash reports and core
 * dumps.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync, readdirSync, readlinkSync, rmSync } from "node:fs";
import { chmod, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { parsePrivateKey } from "../../src/core/key.ts";
import { credentialsIn } from "../../src/trust/credential-files.ts";
import { Agent, podOf, scriptedCurator, type AgentOptions } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import { executable } from "../lab/executable.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { processesOf } from "../lab/remains.ts";
import { SecretGrep } from "../lab/secret-grep.ts";
import { freshMachine, paperNode, soonMs } from "../lab/stage.ts";
import { LabTrust } from "../lab/trust.ts";
import { waitFor } from "../lab/wait.ts";

let lab: Lab;
let trust: LabTrust;
beforeAll(async () => {
  lab = await Lab.create();
  trust = await LabTrust.create(lab);
});
afterAll(() => lab.dispose());

/** Where things were said, and what. */
type Texts = Map<string, string | Uint8Array>;

/** A node with a key, and credentials, and all secrets that can be told by it. */
interface Place {
  readonly machine: Machine;
  readonly directory: string;
  readonly data: string;
  readonly keyFile: string;
  readonly key: string;
  readonly certificateKey: string;
}

async function placeOf(nodeId: string): Promise<Place> {
  const directory = await lab.directory();
  const data = join(directory, nodeId);
  const { key: certificateKey } = await trust.issue(nodeId, data);
  const keyFile = join(data, "private.key");
  const key = newKey().reveal();
  await chmod(data, 0o700);
  await writeFile(keyFile, `${key}\n`, { mode: 0o600 });
  return {
    machine: await freshMachine(lab, nodeId.slice(0, 4)),
    directory,
    data,
    keyFile,
    key,
    certificateKey,
  };
}

function grepOf({ key, certificateKey }: Place): SecretGrep {
  return new SecretGrep()
    .addKey("WireGuard key", key)
    .addPem("certificate key", certificateKey)
    .addPem("CA key", join(trust.caDirectory, "ca-key.pem"));
}

/** Both keys that an agent holds. */
const both = ["WireGuard key", "certificate key"];

function leaksOf(grep: SecretGrep, texts: Texts): readonly string[] {
  return [...texts].flatMap(([where, text]) => grep.namesIn(text).map((name) => `${name} in ${where}`));
}

/** Arguments and environment of everything that runs in the lab. */
async function addProcesses(texts: Texts, when: string): Promise<void> {
  for (const pid of processesOf(lab.mark)) {
    for (const file of ["cmdline", "environ"]) {
      // One that has ended meanwhile says nothing.
      texts.set(`${file} of ${pid} ${when}`, await readFile(`/proc/${pid}/${file}`).catch(() => ""));
    }
  }
}

/**
 * A directory for PATH whose programs write down their own arguments and environment, and whose `wg` at first fails
 * to change anything the way wg(8) does for a damaged file: with the line that holds the key on stderr.
 */
async function leakyPrograms(keyFile: string): Promise<{ readonly path: string; readonly log: string }> {
  const path = await lab.directory();
  const log = join(path, "seen");
  const count = join(path, "count");
  const broken = join(path, "broken");
  for (const name of ["wg", "ip", "wireguard-go"]) {
    const real = Bun.which(name) ?? name;
    const failing = `case "$1" in set|syncconf)
  n=$(($(cat '${count}' 2>/dev/null || echo 0) + 1))
  echo $n >'${count}'
  if [ $n -le 3 ]; then
    key=$(cat '${keyFile}')
    case $n in
      1) line="PrivateKey = $(echo "$key" | sed 's/./*/20')" ;;
      2) line="PrivatKey = $key" ;;
      3) line="PrivateKey = \${key}x" ;;
    esac
    printf '[Interface]\\n%s\\n' "$line" >'${broken}'
    '${real}' setconf clusternet '${broken}'
    rm '${broken}'
    exit 1
  fi ;;
esac
`;
    await writeFile(
      join(path, name),
      `#!/bin/sh\numask 077\ncat /proc/$$/cmdline /proc/$$/environ >>'${log}'\n${name === "wg" ? failing : ""}exec '${real}' "$@"\n`,
    );
    await chmod(join(path, name), 0o755);
  }
  return { path, log };
}

/** A kubeconfig whose plugin quotes its token when it fails, as it always does. */
async function kubeconfigWith(token: string): Promise<string> {
  const directory = await lab.directory();
  const plugin = join(directory, "plugin");
  await writeFile(plugin, `#!/bin/sh\necho 'no session for ${token}' >&2\nexit 1\n`, { mode: 0o700 });
  const exec = { apiVersion: "client.authentication.k8s.io/v1", command: plugin, interactiveMode: "Never" };
  const path = join(directory, "kubeconfig");
  await writeFile(
    path,
    JSON.stringify({
      "current-context": "c",
      contexts: [{ name: "c", context: { cluster: "k", user: "u" } }],
      clusters: [{ name: "k", cluster: { server: "https://192.0.2.250:6443" } }],
      users: [
        { name: "u", user: { exec } },
        { name: "other", user: { token } },
      ],
    }),
    { mode: 0o600 },
  );
  return path;
}

/** All files of the lab that hold a secret, as "name mode secrets". */
function filesWithSecrets(grep: SecretGrep): readonly string[] {
  const below = readdirSync(tmpdir()).filter((name) => name.startsWith(lab.mark));
  const found = below.flatMap((name) => grep.filesBelow(join(tmpdir(), name)));
  const lines = found.map(
    ({ path, mode, secrets }) => `${path.replace(/^.*\//, "")} ${mode} ${secrets.join()}`,
  );
  return lines.toSorted();
}

test("what is looked for is found where it is: in any form, in a file, in memory", async () => {
  const place = await placeOf("control");
  const grep = grepOf(place);
  const bytes = Uint8Array.fromBase64(place.key);
  const pem = await readFile(place.certificateKey, "utf8");
  for (const shown of [
    place.key,
    `PrivateKey = ${place.key}x`,
    place.key.slice(0, 30),
    place.key.slice(12),
    bytes.toHex(),
    `private_key=${bytes.toHex()}`,
    bytes,
    Buffer.concat([Buffer.from("x"), bytes.subarray(16)]),
  ]) {
    expect(grep.namesIn(shown)).toEqual(["WireGuard key"]);
  }
  expect(grep.namesIn(pem)).toEqual(["certificate key"]);
  expect(grep.namesIn(JSON.stringify({ pem }))).toEqual(["certificate key"]);
  expect(grep.namesIn(`${pem.slice(0, 50)} ${newKey().reveal()}`)).toEqual([]);
  expect(grep.filesBelow(place.data).map(({ mode, secrets }) => [mode, ...secrets])).toEqual([
    ["600", "WireGuard key"],
    ["600", "certificate key"],
  ]);
});

test("no key is in any log, answer, argument, environment or file that others may read, whatever fails (case 27)", async () => {
  const curatorFiles = await trust.issue("curator", join(await lab.directory(), "curator"));
  await using curator = await scriptedCurator(lab, `tls-${crypto.randomUUID().slice(0, 4)}`, curatorFiles);
  const place = await placeOf("a");
  const { machine, data, keyFile, key } = place;
  const token = crypto.getRandomValues(new Uint8Array(36)).toBase64();
  const grep = grepOf(place).addPem("Curator's key", curatorFiles.key).addText("Kubernetes token", token);
  const conf = join(data, "clusternet.conf");
  await chmod(keyFile, 0o644);
  await chmod(place.certificateKey, 0o640);
  await writeFile(conf, `[Interface]\nPrivatKey = ${key}\nListenPort = 7838\n`, { mode: 0o644 });
  await writeFile(join(data, "clusternet.state"), '{"version":1,"bootId":');
  const programs = await leakyPrograms(keyFile);
  const options: AgentOptions = {
    curator: curator.address,
    directory: place.directory,
    nodeId: "a",
    trust,
    pod: podOf(1),
    path: programs.path,
  };
  const json = ["--log-format", "json"];
  const kubernetes = ["--kubeconfig", await kubeconfigWith(token), "--kubernetes-node", "n1"];
  const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
  await curator.call.put(paper.bytes);
  await curator.call.refuseWatches({ code: 2, message: "nonsense\u001b[2J" });
  const texts: Texts = new Map();

  const agent = await Agent.start(machine, { ...options, flags: [...json, ...kubernetes] });
  const has = async (...kinds: readonly string[]): Promise<unknown> =>
    await agent.status(
      ({ problems }) => kinds.every((kind) => problems.some((each) => each.kind === kind)),
      soonMs,
    );
  await has("key-mode", "source-failed", "curator-unreachable");
  await curator.call.refuseAnnouncements({ code: 13, message: `no ${"x".repeat(3_000)}` });
  await curator.call.refuseWatches();
  await has("announce-refused");
  await curator.call.refuseAnnouncements();
  await agent.peers((peers) => peers.length === 1, 2 * soonMs);
  await agent.status(({ agent: { ready } }) => ready, soonMs);
  // What wg said of its failures came as far as the log.
  expect(agent.process.stderr).toContain("[redacted]");
  expect(agent.process.stderr).toContain("no session for [redacted]");
  // They are there to be leaked, and found where they are.
  expect(grep.namesInMemory(agent.process.pid)).toEqual(expect.arrayContaining([...both]));
  await addProcesses(texts, "while it runs");
  for (const path of ["/status", "/healthz", "/readyz", "/metrics", "/x"]) {
    const response = await fetch(`http://agent${path}`, { unix: join(data, "clusternet.sock") });
    texts.set(path, await response.text());
  }
  const call = async (...argv: readonly string[]): Promise<void> => {
    const { stdout, stderr } = await machine.run([executable, ...argv], { path: programs.path });
    texts.set(`${argv.join(" ").slice(0, 40)} ${texts.size}`, stdout + stderr);
  };
  const at = ["--data-dir", data];
  await call("status", ...at);
  await call("status", "--json", ...at);
  await call("pubkey", ...at);
  await call("down", ...at);
  const dry = Agent.spawn(machine, { ...options, flags: [...json, "--once", "--dry-run"] });
  await dry.process.exited;
  expect(dry.process.stdout).toContain("PrivateKey");
  texts.set("dry run", dry.process.stdout + dry.process.stderr);
  expect(
    parsePrivateKey(/^PrivateKey = (.*)$/m.exec(await readFile(conf, "utf8"))?.[1] ?? "").publicKey,
  ).toBe(parsePrivateKey(key).publicKey);
  await chmod(place.certificateKey, 0o600);
  expect(new Set(filesWithSecrets(grep))).toEqual(
    new Set([
      "private.key 600 WireGuard key",
      "clusternet.conf 600 WireGuard key",
      "cert-key.pem 600 certificate key",
      "cert-key.pem 600 Curator's key",
      "ca-key.pem 600 CA key",
      "kubeconfig 600 Kubernetes token",
      "plugin 700 Kubernetes token",
    ]),
  );
  await agent.process.stop();
  texts.set("log of the agent", agent.process.stderr + agent.process.stdout);
  // Every line of the log is a JSON object.
  for (const line of agent.process.stderr.trimEnd().split("\n")) JSON.parse(line);

  const fails = async (what: string): Promise<void> => {
    const failed = Agent.spawn(machine, options);
    expect([what, (await failed.process.exited).code]).toEqual([what, 78]);
    texts.set(`log with ${what}`, failed.process.stderr + failed.process.stdout);
    await call("status", ...at);
  };
  for (const typo of [key.replace(/.{5}$/, "*$&").slice(0, 44), `${key}x`, key.slice(0, 43)]) {
    await writeFile(keyFile, typo);
    await fails(`a key file of ${typo.length}`);
    await call("pubkey", ...at);
  }
  await writeFile(keyFile, `${key}\n`);
  const pem = await readFile(place.certificateKey, "utf8");
  for (const damaged of [
    pem.replace("PRIVATE KEY", "SECRET"),
    pem.replace(/\n(.{40})/, "\n$1*"),
    pem + pem,
  ]) {
    await writeFile(place.certificateKey, damaged);
    await fails(`a damaged key of its certificate, ${damaged.length}`);
  }
  await writeFile(place.certificateKey, pem);
  await writeFile(conf, `[Interface]\nPrivatKey = ${key}\n`);
  await call("status", "--json", ...at);
  await call("down", ...at);

  texts.set("arguments and environment of children", readFileSync(programs.log));
  // Whichever came first, the interface or the picture, one of these was given a file with a key.
  expect(/syncconf|private-key/.test(String(readFileSync(programs.log)))).toBe(true);
  expect(leaksOf(grep, texts)).toEqual([]);
}, 120_000);

test("no key is told by an agent whose disk is full, in lines of text", async () => {
  const place = await placeOf("full");
  const { machine, data } = place;
  const grep = grepOf(place);
  const credentials = credentialsIn(data);
  const files = [place.keyFile, ...Object.values(credentials)];
  const saved = await Promise.all(files.map(async (path) => ({ path, text: await readFile(path, "utf8") })));
  await machine.exec(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", data]);
  await machine.exec(["mkdir", dirname(credentials.key)]);
  for (const { path, text } of saved) {
    await machine.exec(["sh", "-c", `umask 077; cat >"$1"`, "sh", path], { stdin: text });
  }
  await machine.run(["sh", "-c", `head -c 1000000 /dev/zero >"$1"`, "sh", join(data, "filler")]);
  const agent = Agent.spawn(machine, {
    curator: "192.0.2.250",
    directory: place.directory,
    nodeId: "full",
    trust,
    pod: podOf(1),
  });
  await agent.process.waitForLine(/No space left|ENOSPC/, { limitMs: 2 * soonMs });
  await agent.process.waitForLine(/clusternet\.conf/, { limitMs: soonMs });
  const inside = `/proc/${machine.namespace.pid}/root${data}`;
  const found = grep
    .filesBelow(inside)
    .map(({ path, mode, secrets }) => `${path.slice(inside.length + 1)} ${mode} ${secrets.join()}`);
  expect(found.toSorted()).toEqual([
    "credentials/cert-key.pem 600 certificate key",
    "private.key 600 WireGuard key",
  ]);
  await agent.process.stop();
  expect(leaksOf(grep, new Map([["log", agent.process.stderr + agent.process.stdout]]))).toEqual([]);
}, 60_000);

/** Runs inside of the executable: throws the keys, in all their forms, when the agent has come so far. */
function crash(place: Place, how: string): string {
  return `
    import { existsSync, readFileSync } from "node:fs";
    const key = readFileSync(${JSON.stringify(place.keyFile)}, "utf8").trim();
    const pem = readFileSync(${JSON.stringify(place.certificateKey)}, "utf8");
    const timer = setInterval(() => {
      if (!existsSync(${JSON.stringify(join(place.data, "clusternet.sock"))})) return;
      clearInterval(timer);
      const hex = Buffer.from(key, "base64").toString("hex");
      const error = new TypeError("bug " + key + " " + hex, { cause: new Error(pem + key.slice(0, 43)) });
      ${how};
    }, 5);
  `;
}

describe("a bug of the agent", () => {
  test.each([
    { name: "thrown", how: "throw error", format: "text" },
    { name: "rejected", how: "void Promise.reject(error)", format: "json" },
  ])(
    "$name in the middle of something is reported without the keys in its message ($format)",
    async ({ how, format }) => {
      const place = await placeOf("bug");
      const preload = join(place.directory, "crash.ts");
      await writeFile(preload, crash(place, how));
      const agent = Agent.spawn(place.machine, {
        curator: "192.0.2.250",
        directory: place.directory,
        nodeId: "bug",
        trust,
        flags: ["--log-format", format],
        env: { BUN_OPTIONS: `--preload=${preload}` },
      });
      expect((await agent.process.exited).code).toBe(1);
      const said = agent.process.stderr + agent.process.stdout;
      expect(said).toContain("Unexpected error, please report it: TypeError: bug [redacted] [redacted]");
      expect(said).toContain("caused by Error: -----BEGIN PRIVATE KEY-----");
      expect(leaksOf(grepOf(place), new Map([["report", said]]))).toEqual([]);
    },
    60_000,
  );
});

describe("a key in memory", () => {
  test("is in no core dump, of the agent or of the wireguard-go that it started, and closed to other processes", async () => {
    const place = await placeOf("core");
    const { machine } = place;
    const grep = grepOf(place);
    const cores = await lab.directory();
    // Where wireguard-go works.
    const before = new Set(coresIn("/"));
    const newCores = (): readonly string[] =>
      [...coresIn(cores), ...coresIn("/")].filter((path) => !before.has(path));
    try {
      // Whether core dumps are files here at all is the host's affair; where they are, this is how one is found.
      const pattern = (await readFile("/proc/sys/kernel/core_pattern", "utf8")).trim();
      const control = machine.spawn([...dumping(cores), "sleep", "1000"]);
      await waitFor(async () => (await readFile(`/proc/${control.pid}/comm`, "utf8")) === "sleep\n", {
        limitMs: soonMs,
        what: "the control to be sleep",
      });
      const readBy = async (pid: number, ...user: readonly string[]): Promise<string> => {
        const argv = [...withoutSight, ...user, "cat", `/proc/${pid}/environ`, `/proc/${pid}/maps`];
        const { code, stderr } = await machine.run(argv);
        return code === 0 ? "read" : (/Permission denied/.exec(stderr)?.[0] ?? stderr);
      };
      const nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
      expect([await readBy(control.pid), await readBy(control.pid, ...nobody)]).toEqual([
        "read",
        "Permission denied",
      ]);
      control.kill("SIGSEGV");
      await control.exited;
      if (/^core(\.%p)?$/.test(pattern)) expect(newCores().length).toBe(1);
      for (const path of coresIn(cores)) rmSync(path);

      for (const signal of ["SIGQUIT", "SIGABRT", "SIGSEGV"] as const) {
        const agent = await Agent.start(machine, {
          curator: "192.0.2.250",
          directory: place.directory,
          nodeId: "core",
          trust,
          wrapper: dumping(cores),
          pod: podOf(1),
        });
        await agent.status(({ interface: { up } }) => up, soonMs);
        const other = await waitFor(() => wireguardGoOn(machine), { limitMs: soonMs, what: "wireguard-go" });
        const pids = { agent: agent.process.pid, wireguardGo: other };
        for (const [who, pid] of Object.entries(pids)) {
          const limits = readFileSync(`/proc/${pid}/limits`, "utf8");
          expect([who, /^Max core file size +(\S+) +(\S+)/m.exec(limits)?.slice(1)]).toEqual([
            who,
            ["1", "1"],
          ]);
        }
        // There is something to be dumped.
        expect(grep.namesInMemory(pids.agent)).toContain("WireGuard key");
        expect(grep.namesInMemory(pids.wireguardGo)).toEqual(["WireGuard key"]);
        expect([await readBy(pids.agent), await readBy(pids.agent, ...nobody)]).toEqual([
          "Permission denied",
          "Permission denied",
        ]);
        agent.process.kill(signal);
        await agent.process.exited;
        process.kill(other, signal);
        await waitFor(() => wireguardGoOn(machine) === undefined, {
          limitMs: soonMs,
          what: "the end of wireguard-go",
        });
        expect([signal, ...newCores()]).toEqual([signal]);
        expect(leaksOf(grep, new Map([[signal, agent.process.stderr + agent.process.stdout]]))).toEqual([]);
      }
    } finally {
      for (const path of newCores()) rmSync(path);
    }
  }, 120_000);
});

/** Root without what lets it look into every process: no more than any other user then. */
const withoutSight = ["setpriv", "--bounding-set", "-sys_ptrace,-perfmon,-sys_admin"];

/** A process that would leave a core dump in this directory, and is no mightier than others of its user. */
function dumping(directory: string): readonly string[] {
  return [...withoutSight, "sh", "-c", 'ulimit -c unlimited; cd "$0"; exec "$@"', directory];
}

/** Core dumps in a directory. */
function coresIn(directory: string): readonly string[] {
  return readdirSync(directory)
    .filter((name) => /^core(?:\.\d+)?$/.test(name))
    .map((name) => join(directory, name));
}

function networkOf(pid: number): string {
  return readlinkSync(`/proc/${pid}/ns/net`);
}

/** The wireguard-go of a machine; those of others in the lab live on too. */
function wireguardGoOn(machine: Machine): number | undefined {
  return processesOf(lab.mark).find((pid) => {
    try {
      return (
        readFileSync(`/proc/${pid}/cmdline`, "utf8").includes("wireguard-go") &&
        networkOf(pid) === networkOf(machine.namespace.pid)
      );
    } catch {
      // It has ended since it was listed.
      return false;
    }
  });
}
