/**
 * Starts, in good and bad surroundings: what is missing, taken, damaged or somebody else's, and what `down`, `--once`
 * and `--dry-run` leave behind.
 */
import { describe, expect, test } from "bun:test";
import { existsSync, lstatSync, readdirSync, readFileSync } from "node:fs";
import { chmod, mkdir, readFile, rename, rm, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parsePublicKey } from "../../src/core/key.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderWgConfig } from "../../src/core/wg-config.ts";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import type { NodeId } from "../../src/core/node.ts";
import type { Status } from "../../src/status.ts";
import { node } from "../fakes/curator.ts";
import { Agent, executable, podOf, type AgentOptions } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import type { Machine } from "../lab/lab.ts";
import type { ExecResult } from "../lab/namespace.ts";
import { sharedLab } from "../lab/shared-lab.ts";
import { freshMachine, paperNode, soonMs } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

const shared = sharedLab();

/** A machine on which agent "a" has not been started yet. */
class Place {
  readonly machine: Machine;
  readonly options: AgentOptions;
  readonly data: string;
  #agents: Agent[] = [];

  private constructor(machine: Machine, options: AgentOptions) {
    this.machine = machine;
    this.options = options;
    this.data = join(options.directory, "a");
  }

  static async create(more: Partial<AgentOptions> = {}): Promise<Place> {
    return new Place(await freshMachine(shared.lab, "a"), {
      curator: shared.curator.address,
      directory: await shared.lab.directory(),
      nodeId: "a",
      pod: podOf(1).slice(0, 1),
      ...more,
    });
  }

  async start(more: Partial<AgentOptions> = {}): Promise<Agent> {
    const agent = await Agent.start(this.machine, { ...this.options, ...more });
    this.#agents.push(agent);
    return agent;
  }

  spawn(more: Partial<AgentOptions> = {}): Agent {
    const agent = Agent.spawn(this.machine, { ...this.options, ...more });
    this.#agents.push(agent);
    return agent;
  }

  /** Runs the agent to its end. */
  async run(more: Partial<AgentOptions> = {}, limitMs = 20_000): Promise<Outcome> {
    const { process } = this.spawn(more);
    await waitFor(() => process.exit !== undefined, {
      limitMs,
      what: "the end",
      detail: () => process.describe(),
    });
    return { code: process.exit?.code, stdout: process.stdout, stderr: process.stderr };
  }

  /** `clusternet COMMAND --data-dir …` on this machine. */
  async command(name: string, ...flags: readonly string[]): Promise<ExecResult> {
    return await this.machine.run([executable, name, "--data-dir", this.data, ...flags]);
  }

  async statusJson(): Promise<Status> {
    return JSON.parse((await this.command("status", "--json")).stdout);
  }

  /** Makes the data directory with a key, as an earlier run would have. */
  async prepareKey(key = newKey()): Promise<ReturnType<typeof newKey>> {
    await mkdir(this.data, { recursive: true, mode: 0o700 });
    await writeFile(join(this.data, "private.key"), `${key.reveal()}\n`, { mode: 0o600 });
    return key;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) if (agent.process.exit === undefined) await agent.kill();
  }
}

interface Outcome {
  readonly code: number | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

/** The kernel takes a moment to be done with an IPv6 address: its own route comes last. */
async function settledAddresses(machine: Machine): Promise<boolean> {
  const addresses = await machine.exec(["ip", "-6", "-o", "address"]);
  const routes = await machine.exec(["ip", "-6", "route", "show", "table", "local"]);
  const own = Array.from(addresses.matchAll(/inet6 ([^/ ]+)/g), ([, address = ""]) => address);
  return !addresses.includes(" tentative") && own.every((address) => routes.includes(`local ${address} `));
}

/** Everything of the host's network that the program might touch. */
async function snapshot(machine: Machine): Promise<Record<string, readonly string[]>> {
  await waitFor(() => settledAddresses(machine), {
    limitMs: soonMs,
    what: "addresses that are there to stay",
  });
  const commands = {
    ruleset: ["nft", "list", "ruleset"],
    rules: ["ip", "rule"],
    rules6: ["ip", "-6", "rule"],
    routes: ["ip", "route", "show", "table", "all"],
    routes6: ["ip", "-6", "route", "show", "table", "all"],
    addresses: ["ip", "-o", "address"],
    links: ["ip", "-o", "link"],
    uapi: ["ls", "/run/wireguard"],
  };
  const found: Record<string, readonly string[]> = {};
  for (const [name, argv] of Object.entries(commands)) {
    found[name] = (await machine.exec(argv)).trimEnd().split("\n").toSorted();
  }
  return found;
}

const problemsOf = (status: Status): readonly string[] => status.problems.map(({ kind }) => kind).toSorted();

const publicKeyOf = async (machine: Machine): Promise<string> =>
  (await machine.exec(["wg", "show", "clusternet", "public-key"])).trim();

/** GET on the agent's socket. */
async function get(data: string, path: string): Promise<{ status: number; text: string }> {
  const response = await fetch(`http://agent${path}`, { unix: join(data, "clusternet.sock") });
  return { status: response.status, text: await response.text() };
}

describe("a start without any Curator", () => {
  test("that has no file either is not ready, and says what is missing (case 26)", async () => {
    await using place = await Place.create({ curator: "192.0.2.250:7835" });
    await place.start();
    const { status, text } = await get(place.data, "/readyz");
    expect({ status, text }).toEqual({
      status: 503,
      text: expect.stringContaining("full picture of a Curator"),
    });
    expect((await get(place.data, "/healthz")).status).toBe(200);
  });

  const mesh = {
    peers: [
      {
        nodeId: "x" as NodeId,
        publicKey: parsePublicKey("HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw="),
        address: parseAddress("198.51.100.7"),
        prefixes: [parsePrefix("10.192.7.0/24")],
      },
    ],
  };
  test.each([
    { name: "cut in the middle", text: (own: string) => own.slice(0, own.length - 70) },
    { name: "full of other bytes", text: () => "\u0000\u0001garbage" },
    {
      name: "of another key",
      text: () => renderWgConfig({ listenPort: 7838, mesh }, newKey()),
    },
    {
      name: "of wg-quick",
      text: (own: string) =>
        own.replace("[Interface]", "[Interface]\nAddress = 10.192.1.1/24\nPostUp = true"),
    },
    { name: "with a misspelt key", text: (own: string) => own.replace("PrivateKey", "PrivatKey") },
  ])(
    "is not worse with a file $name: reported, the working interface stays, the file comes back (case 26)",
    async ({ text }) => {
      await using place = await Place.create();
      const agent = await place.start();
      const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
      await shared.curator.call.put(paper.bytes);
      await agent.peers((peers) => peers.length === 1, soonMs);
      await agent.kill();
      const conf = join(place.data, "clusternet.conf");
      const good = await readFile(conf, "utf8");
      const damaged = text(good);
      await writeFile(conf, damaged);

      const alone = await place.start({ curator: "192.0.2.250:7835" });
      const status = await alone.status(
        ({ problems }) => problems.some(({ kind }) => kind === "source-failed"),
        soonMs,
      );
      expect(status.problems.find(({ kind }) => kind === "source-failed")?.message).toContain(conf);
      const secret = parseWgConfig(good).privateKey.reveal();
      expect(`${JSON.stringify(status)}${alone.process.stderr}`).not.toContain(secret.slice(0, 20));
      // Compared with the interface once more before it is looked at.
      await place.machine.ip("link set clusternet mtu 1300");
      await waitFor(
        async () => (await place.machine.exec(["ip", "link", "show", "clusternet"])).includes("mtu 1420"),
        {
          limitMs: soonMs,
          what: "the MTU set right",
        },
      );
      await alone.peers((peers) => peers.length === 1 && peers[0]?.[0] === paper.key, 1_000);
      expect(await readFile(conf, "utf8")).toBe(damaged);
      await alone.kill();

      await place.start();
      await waitFor(async () => (await readFile(conf, "utf8")) === good, {
        limitMs: soonMs,
        what: "the file written anew",
        detail: () => readFileSync(conf, "utf8").replace(secret, "KEY"),
      });
      await shared.curator.call.remove("b");
    },
  );
});

describe("a UDP port that somebody holds", () => {
  test("is named with the interface, waited for, and used as soon as it is free; --once ends with 69 (case 28)", async () => {
    await using place = await Place.create();
    const { machine } = place;
    await machine.exec(["wireguard-go", "holder"]);
    await machine.exec(["wg", "set", "holder", "listen-port", "7838"]);
    await machine.ip("link set holder up");
    const once = await place.run({ flags: ["--once"] });
    expect([once.code, once.stderr]).toEqual([69, expect.stringMatching(/UDP port 7838 .*"clusternet"/)]);

    const agent = await place.start();
    const waiting = await agent.status(({ problems }) => problems.length > 0, soonMs);
    expect(waiting).toMatchObject({
      agent: { ready: false, reasons: [expect.stringMatching(/UDP port 7838 .*"clusternet"/)] },
      problems: [{ kind: "port-in-use" }],
    });
    expect((await get(place.data, "/readyz")).status).toBe(503);
    await machine.ip("link delete holder");
    await agent.status(({ agent: { ready }, problems }) => ready && problems.length === 0, 20_000);
    expect((await machine.exec(["wg", "show", "clusternet", "listen-port"])).trim()).toBe("7838");
  });
});

describe("a key file", () => {
  test("that cannot be used ends the start with 78, stays as it is, and the interface keeps its key (case 29)", async () => {
    await using place = await Place.create();
    const agent = await place.start();
    await agent.status(({ agent: { ready } }) => ready, soonMs);
    await agent.kill();
    const path = join(place.data, "private.key");
    const key = (await readFile(path, "utf8")).trim();
    const before = await publicKeyOf(place.machine);
    const broken: Readonly<Record<string, () => Promise<void>>> = {
      empty: () => writeFile(path, ""),
      "cut to 20 characters": () => writeFile(path, key.slice(0, 20)),
      "of 45 characters": () => writeFile(path, `${key}x`),
      "with a typo": () => writeFile(path, key.replace(/^./, "*")),
      "a directory": () => mkdir(path),
      "a symbolic link to nowhere": () => symlink("/nowhere", path),
    };
    const found: Record<string, unknown> = {};
    for (const [name, make] of Object.entries(broken)) {
      await rm(path, { recursive: true });
      await make();
      const identity = (): string => {
        const { ino, size, mtimeMs } = lstatSync(path);
        return `${ino} ${size} ${mtimeMs}`;
      };
      const was = identity();
      const { code, stderr } = await place.run();
      found[name] = {
        code,
        namesFile: stderr.includes(path),
        remedy: stderr.includes("Put the right key back"),
        secret: stderr.includes(key.slice(1, 20)),
        untouched: identity() === was,
        kept: (await publicKeyOf(place.machine)) === before,
      };
    }
    const wanted = { code: 78, namesFile: true, remedy: true, secret: false, untouched: true, kept: true };
    expect(found).toEqual(Object.fromEntries(Object.keys(broken).map((name) => [name, wanted])));
  });

  test("that others may read is closed and reported, and a directory that they may write; what a crash left beside it changes nothing (case 29)", async () => {
    await using place = await Place.create();
    const key = await place.prepareKey();
    await chmod(join(place.data, "private.key"), 0o644);
    await chmod(place.data, 0o777);
    const leftover = join(place.data, ".private.key.0123456789abcdef.clusternet-tmp");
    await writeFile(leftover, newKey().reveal().slice(0, 10));
    const agent = await place.start();
    const status = await agent.status(({ problems }) => problems.length > 1, soonMs);
    expect(status.node.publicKey).toBe(key.publicKey);
    expect(problemsOf(status)).toEqual(["directory-mode", "key-mode"]);
    // The directory is not ours to close; once it is closed, that is the end of it.
    expect((await stat(place.data)).mode & 0o777).toBe(0o777);
    await chmod(place.data, 0o700);
    await agent.status(({ problems }) => problems.length === 1, soonMs);
    expect((await stat(join(place.data, "private.key"))).mode & 0o777).toBe(0o600);
    expect(existsSync(leftover)).toBe(false);
  });
});

/** Mounts a small file system over the data directory, which only the machine sees; the path leads to it from here. */
async function small(place: Place): Promise<string> {
  await mkdir(place.data, { mode: 0o700 });
  await place.machine.exec(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", place.data]);
  return `/proc/${place.machine.namespace.pid}/root${place.data}`;
}
const fill = async (inside: string): Promise<void> => {
  const left = await Bun.$`dd if=/dev/zero of=${inside}/ballast bs=4096`.nothrow().quiet();
  expect(left.exitCode).not.toBe(0);
};

describe("a disk", () => {
  test("that is full gets no empty key file, and the start works once there is room (case 29)", async () => {
    await using place = await Place.create();
    const inside = await small(place);
    await fill(inside);
    const { code, stderr } = await place.run();
    expect([code, stderr]).toEqual([78, expect.stringContaining("no key was written")]);
    expect(readdirSync(inside)).toEqual(["ballast"]);
    await rm(join(inside, "ballast"));
    expect((await place.run({ flags: ["--once"] })).code).toBe(0);
    expect(readFileSync(join(inside, "private.key"), "utf8")).toHaveLength(45);
  });

  test.each([
    {
      name: "goes on",
      end: async ({ process }: Agent, written: () => boolean): Promise<void> => {
        await waitFor(written, {
          limitMs: 15_000 + soonMs,
          what: "the state",
          detail: () => process.describe(),
        });
        process.kill("SIGKILL");
        await process.exited;
      },
    },
    {
      name: "is stopped at once",
      end: async ({ process }: Agent): Promise<void> => {
        expect(await process.stop()).toEqual({ code: 0, signal: undefined });
      },
    },
  ])(
    "that was full gets the state of an agent that $name, and `down` takes its address away",
    async ({ end }) => {
      await using place = await Place.create();
      const inside = await small(place);
      await writeFile(join(inside, "private.key"), `${newKey().reveal()}\n`, { mode: 0o600 });
      await fill(inside);
      const address = "10.192.1.1";
      const onLoopback = async (): Promise<boolean> =>
        (await place.machine.exec(["ip", "-o", "address", "show", "dev", "lo"])).includes(address);
      const state = join(inside, "clusternet.state");
      const agent = place.spawn({ flags: ["--resync", "3600"] });
      await agent.process.waitForLine(/WARN .*clusternet\.state.*problem=file-unwritable/, {
        limitMs: soonMs,
      });
      await waitFor(onLoopback, { limitMs: soonMs, what: address, detail: () => agent.process.describe() });
      expect(existsSync(state) ? readFileSync(state, "utf8") : "").not.toContain(address);
      await rm(join(inside, "ballast"));
      await end(agent, () => existsSync(state) && readFileSync(state, "utf8").includes(address));
      expect(JSON.parse(readFileSync(state, "utf8"))).toMatchObject({ loopbackAddresses: [address] });
      const taken = await place.command("down");
      expect([taken.code, taken.stderr]).toEqual([0, expect.not.stringContaining("WARN")]);
      expect(await onLoopback()).toBe(false);
    },
  );

  test("that is still full when an agent is stopped makes it say what the next start will not know", async () => {
    await using place = await Place.create();
    const inside = await small(place);
    await writeFile(join(inside, "private.key"), `${newKey().reveal()}\n`, { mode: 0o600 });
    await fill(inside);
    const { process } = place.spawn({ flags: ["--resync", "3600"] });
    await process.waitForLine(/INFO .*Applied the mesh/, { limitMs: soonMs });
    expect(await process.stop()).toEqual({ code: 0, signal: undefined });
    expect(process.stderr).toMatch(
      /WARN .*Cannot write .*clusternet\.state.*The next start, or `down`, does not know/,
    );
    await rm(join(inside, "ballast"));
  });

  test("whose directory has become a file under an agent is reported in its own words, and it is stopped with 0", async () => {
    await using place = await Place.create();
    const { process } = await place.start({ flags: ["--resync", "1"] });
    await process.waitForLine(/Announced this node/, { limitMs: soonMs });
    await rename(place.data, `${place.data}-away`);
    await writeFile(place.data, "");
    for (const each of ["data directory", "private.key", "socket", "clusternet.state", "clusternet.conf"])
      await process.waitForLine(
        new RegExp(`WARN .*Cannot .*${RegExp.escape(each)}.*problem=file-unwritable`),
        {
          limitMs: soonMs,
        },
      );
    expect(await process.stop()).toEqual({ code: 0, signal: undefined });
    const told = process.lines.map(({ text }) => text).filter((text) => text.includes("file-unwritable"));
    expect(told).toEqual(told.filter((text) => / WARN +Cannot /.test(text)));
  });

  test("that is read-only is a problem with a key on it, and 78 without", async () => {
    await using place = await Place.create();
    await mkdir(place.data, { mode: 0o700 });
    const readOnly = async (): Promise<void> => {
      await place.machine.exec(["mount", "--bind", place.data, place.data]);
      await place.machine.exec(["mount", "-o", "remount,ro,bind", place.data]);
    };
    await readOnly();
    const without = await place.run();
    expect([without.code, without.stderr]).toEqual([
      78,
      expect.stringContaining(join(place.data, "private.key")),
    ]);
    expect(readdirSync(place.data)).toEqual([]);
    await place.machine.exec(["umount", place.data]);
    await place.prepareKey();
    await readOnly();
    const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
    await shared.curator.call.put(paper.bytes);
    const once = await place.run({ flags: ["--once", "--timeout", "3"] });
    expect([once.code, once.stderr]).toEqual([
      75,
      expect.stringMatching(
        /^Cannot finish within 3 s: .*not every file could be written.*\n(  because: .*\n)*  because: .*clusternet\.conf/m,
      ),
    ]);
    const agent = place.spawn();
    await agent.peers((peers) => peers.length === 1, soonMs);
    await agent.process.waitForLine(/file-unwritable/, { limitMs: soonMs });
    expect(agent.process.exit).toBeUndefined();
    await shared.curator.call.remove("b");
  });
});

/** A directory with nothing but these programs in it, for PATH. */
async function pathOf(...names: readonly string[]): Promise<string> {
  const directory = await shared.lab.directory();
  for (const name of names) await symlink(Bun.which(name) ?? `/nowhere/${name}`, join(directory, name));
  return directory;
}

describe("a host that lacks something", () => {
  test.each([
    { name: "no wg", programs: ["ip", "wireguard-go"], prefix: [], says: /"wg".*PATH[^]*wireguard-tools/ },
    { name: "no ip", programs: ["wg", "wireguard-go"], prefix: [], says: /"ip".*PATH[^]*iproute2/ },
    {
      name: "no wireguard-go",
      programs: ["wg", "ip"],
      prefix: [],
      says: /wireguard-go is not in PATH[^]*apt-get install wireguard-go/,
    },
    {
      name: "no CAP_NET_ADMIN",
      programs: ["wg", "ip", "wireguard-go"],
      prefix: ["setpriv", "--bounding-set", "-net_admin"],
      says: /no CAP_NET_ADMIN[^]*--cap-add NET_ADMIN/,
    },
    {
      name: "no /dev/net/tun",
      programs: ["wg", "ip", "wireguard-go"],
      prefix: ["sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"],
      says: /no \/dev\/net\/tun[^]*modprobe tun/,
    },
    {
      name: "no kernel WireGuard where that is asked for",
      programs: ["wg", "ip"],
      prefix: [],
      flags: ["--wireguard", "kernel"],
      says: /this kernel has no WireGuard[^]*modprobe wireguard/,
    },
  ])(
    "with $name ends a start with 69 within 5 s and its own message, and nothing is left (case 32)",
    async ({ programs, prefix, says, flags = [] }) => {
      await using place = await Place.create({ flags });
      const before = await snapshot(place.machine);
      const path = await pathOf(...programs);
      const started = performance.now();
      const { code, stderr } = await place.run({ wrapper: [...prefix, "/usr/bin/env", `PATH=${path}`] });
      expect(performance.now() - started).toBeLessThan(5_000);
      expect([code, stderr]).toEqual([69, expect.stringMatching(says)]);
      expect(await snapshot(place.machine)).toEqual(before);
      expect(existsSync(place.data) ? readdirSync(place.data) : []).toEqual([]);
    },
  );
});

test("--wireguard auto says in log and status which implementation runs (case 32)", async () => {
  await using place = await Place.create({ flags: ["--wireguard", "auto"] });
  const agent = await place.start();
  const status = await agent.status(({ agent: { ready } }) => ready, soonMs);
  expect(status.interface.implementation).toBe("userspace");
  await agent.process.waitForLine(/Creating the interface .*implementation=userspace/, { limitMs: 1_000 });
});

describe("a place that is taken", () => {
  test("by another agent, on the directory or the interface, ends the second start with 75 and names the first", async () => {
    await using place = await Place.create();
    const first = await place.start();
    const pid = String((await first.status(() => true, soonMs)).agent.pid);
    const same = await place.run();
    expect([same.code, same.stderr]).toEqual([75, expect.stringContaining(pid)]);
    const other = await place.run({ directory: await shared.lab.directory() });
    expect([other.code, other.stderr]).toEqual([75, expect.stringContaining(pid)]);
    await first.status(({ agent: { ready } }) => ready, soonMs);
  });

  const foreign = [
    {
      name: "a bridge",
      make: async (machine: Machine) => await machine.ip("link add clusternet type bridge"),
    },
    {
      name: "a WireGuard with another key",
      make: async (machine: Machine) => {
        await machine.exec(["wireguard-go", "clusternet"]);
        const keyFile = join(await shared.lab.directory(), "key");
        await writeFile(keyFile, newKey().reveal(), { mode: 0o600 });
        await machine.exec(["wg", "set", "clusternet", "private-key", keyFile, "listen-port", "9999"]);
      },
    },
  ];
  test.each(foreign)(
    "by $name is left alone and reported with the command that frees it; then the start goes on",
    async ({ make }) => {
      await using place = await Place.create();
      await make(place.machine);
      const before = await place.machine.exec(["ip", "-o", "link", "show", "clusternet"]);
      const agent = await place.start();
      const status = await agent.status(({ problems }) => problems.length > 0, soonMs);
      expect(status).toMatchObject({
        agent: { ready: false, reasons: [expect.stringContaining("ip link delete dev clusternet")] },
        problems: [
          { kind: "interface-foreign", message: expect.stringContaining("ip link delete dev clusternet") },
        ],
      });
      expect(await place.machine.exec(["ip", "-o", "link", "show", "clusternet"])).toBe(before);
      await place.machine.ip("link delete dev clusternet");
      await agent.status(({ agent: { ready }, problems }) => ready && problems.length === 0, 20_000);
      expect(await publicKeyOf(place.machine)).toBe(
        (await agent.status(() => true, soonMs)).node.publicKey ?? "",
      );
    },
  );

  test("by a foreign route is left alone and reported; ours comes when it goes", async () => {
    await using place = await Place.create();
    await place.machine.ip("route add 10.192.0.0/11 dev eth0");
    const agent = await place.start();
    const status = await agent.status(({ problems }) => problems.length > 0, soonMs);
    expect(status.problems).toMatchObject([
      { kind: "route-foreign", message: expect.stringContaining("ip route delete 10.192.0.0/11 dev eth0") },
    ]);
    const routes = async (): Promise<string> =>
      await place.machine.exec(["ip", "route", "show", "10.192.0.0/11"]);
    expect(await routes()).toContain("dev eth0");
    expect(await routes()).not.toContain("dev clusternet");
    await place.machine.ip("route delete 10.192.0.0/11 dev eth0");
    await agent.status(({ problems }) => problems.length === 0, soonMs);
    expect(await routes()).toContain("dev clusternet");
  });
});

describe("down", () => {
  test("takes everything of ours away and nothing else, keeps key and file, and refuses while an agent runs (case 43)", async () => {
    await using place = await Place.create();
    const { machine } = place;
    await machine.exec(["nft", "-f", "-"], {
      stdin: "table inet site {\nchain in {\ntype filter hook input priority 0;\n}\n}\n",
    });
    const before = await snapshot(machine);
    const agent = await place.start();
    const status = await agent.status(({ agent: { ready } }) => ready, soonMs);
    const refused = await place.command("down");
    expect([refused.code, refused.stderr]).toEqual([75, expect.stringContaining(String(status.agent.pid))]);

    // By hand, some of it right beside ours.
    const add = [
      "rule add from 198.51.100.0/24 table 77",
      "route add 198.51.100.0/24 dev clusternet",
      "route add 198.51.101.0/24 dev eth0 proto 129",
      "address add 10.192.1.77/32 dev lo",
    ];
    await machine.ip(...add);
    await machine.exec(["nft", "add", "table", "inet", "foreign"]);
    expect(await snapshot(machine)).not.toEqual(before);
    expect((await agent.process.stop()).code).toBe(0);
    const files = readdirSync(place.data).filter((name) => !name.endsWith(".state"));
    const key = await readFile(join(place.data, "private.key"), "utf8");

    expect((await place.command("down")).code).toBe(0);
    expect((await place.command("down")).code).toBe(0);
    expect(readdirSync(place.data).filter((name) => !name.endsWith(".state"))).toEqual(files);
    expect(await readFile(join(place.data, "private.key"), "utf8")).toBe(key);
    // Each of these fails when it is not there any more; the route through our interface went with that.
    await machine.ip(
      "rule delete from 198.51.100.0/24 table 77",
      "route delete 198.51.101.0/24 dev eth0 proto 129",
      "address delete 10.192.1.77/32 dev lo",
    );
    await machine.exec(["nft", "delete", "table", "inet", "foreign"]);
    expect(await snapshot(machine)).toEqual(before);
  });

  test("of a data directory that another interface has takes nothing, says so with 1, and which one it is", async () => {
    await using place = await Place.create();
    const { machine, data } = place;
    const agent = await place.start({ interfaceName: "cn2" });
    await agent.status(({ agent: { ready } }) => ready, soonMs);
    await agent.process.stop();
    const before = await snapshot(machine);
    const other = await place.command("down");
    const command = (name: string): string => `clusternet ${name} --data-dir ${data} --interface cn2`;
    expect([other.code, other.stderr]).toEqual([
      1,
      expect.stringMatching(
        new RegExp(
          `^\\S+Z WARN {2}Not taken away is what .* interface "cn2"; hint: run \`${command("down")}\`\n$`,
        ),
      ),
    ]);
    expect(await snapshot(machine)).toEqual(before);
    expect((await place.command("status")).stdout).toContain(
      `its files are of interface "cn2"; ask with: ${command("status")}`,
    );
    expect((await place.command("down", "--interface", "cn2")).code).toBe(0);
    const after = await place.command("down");
    expect([after.code, after.stderr]).toEqual([0, ""]);
  });

  test("of another interface leaves route and guard of an agent, running, without interface or stopped", async () => {
    await using place = await Place.create();
    const { machine } = place;
    const agent = await place.start();
    await agent.status(({ agent: { ready } }) => ready, soonMs);
    const routes = async (): Promise<string> =>
      (await machine.exec(["ip", "route", "show", "proto", "129"])) +
      (await machine.exec(["ip", "-6", "route", "show", "proto", "129"]));
    const before = await routes();
    expect(before).toContain("unreachable 10.192.0.0/11");
    const other = ["down", "--data-dir", join(agent.dataDirectory, "none"), "--interface", "cn2"];
    const besides = await machine.run([executable, ...other]);
    const kept = expect.stringMatching(
      /^\S+Z INFO {2}Route and guard stay: .* network=10\.192\.0\.0\/11 holder="process \d+ /,
    );
    expect([besides.code, besides.stderr, await routes()]).toEqual([0, kept, before]);
    // While its interface is away the guard is all that is there, and stays too.
    agent.process.kill("SIGSTOP");
    await machine.ip("link delete clusternet");
    const guard = await routes();
    const meanwhile = await machine.run([executable, ...other]);
    expect([meanwhile.code, meanwhile.stderr, await routes()]).toEqual([0, kept, guard]);
    expect(guard).toContain("unreachable 10.192.0.0/11");
    agent.process.kill("SIGCONT");
    await waitFor(async () => (await routes()) === before, { limitMs: soonMs, what: "the routes put back" });
    await agent.process.stop();
    const after = await machine.run([executable, ...other]);
    expect([after.code, after.stderr, await routes()]).toEqual([0, "", before]);
  });
});

describe("a restart", () => {
  test("with a file older than the interface removes no peer before a believed picture", async () => {
    await using place = await Place.create();
    const papers = ["b", "c"].map((id, at) =>
      paperNode(id, `198.51.100.${at + 1}`, [`10.192.${at + 20}.0/24`]),
    );
    const [first, second] = papers;
    if (first === undefined || second === undefined) throw new Error("two nodes were made");
    await shared.curator.call.put(first.bytes);
    const agent = await place.start();
    await agent.peers((peers) => peers.length === 1, soonMs);
    const file = join(place.data, "clusternet.conf");
    const older = await readFile(file);
    await shared.curator.call.put(second.bytes);
    await agent.peers((peers) => peers.length === 2, soonMs);
    await agent.kill();
    await writeFile(file, older);
    const alone = await place.start({ curator: "192.0.2.250:7835" });
    await alone.status(({ source, agent: { ready } }) => ready && source === "file", soonMs);
    // Compared with the interface once more before it is looked at.
    await alone.process.waitForLine(/Starting from the last file peers=1/, { limitMs: soonMs });
    await place.machine.exec(["ip", "link", "set", "clusternet", "group", "7"]);
    await waitFor(
      async () => (await place.machine.exec(["ip", "link", "show", "clusternet"])).includes("group 9"),
      { limitMs: soonMs, what: "the group to be put back" },
    );
    const kept = await alone.peers(() => true, soonMs);
    expect(new Set(kept.map(([key]) => key))).toEqual(new Set(papers.map(({ key }) => key)));
    for (const id of ["b", "c"]) await shared.curator.call.remove(id);
  });
});

/** Its lines in what `--dry-run` prints. */
function announcementIn(stdout: string): string {
  return /^# Announcement\n((?:# .*\n)*)/m.exec(stdout)?.[1]?.trim() ?? "";
}

describe("--once", () => {
  test("applies, announces and ends with 0; without a Curator with 75, saying what is missing", async () => {
    await using place = await Place.create();
    const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
    await shared.curator.call.put(paper.bytes);
    const done = await place.run({ flags: ["--once"] });
    expect(done.code).toBe(0);
    const shown = await place.machine.exec(["wg", "show", "clusternet", "peers"]);
    expect(shown.trim()).toBe(paper.key);
    const own = await publicKeyOf(place.machine);
    const { announcements } = await shared.curator.call.seen();
    expect(announcements.at(-1)).toMatchObject({
      nodeId: "a",
      key: own,
      prefixes: [`${place.machine.address}/32`, "10.192.1.0/24"],
    });
    const late = await place.run({ curator: "192.0.2.250:7835", flags: ["--once", "--timeout", "1"] });
    expect([late.code, late.stderr]).toEqual([
      75,
      expect.stringContaining('no full picture has come from a Curator (connecting to "192.0.2.250:7835")'),
    ]);
    const previewed = await place.run({
      curator: "192.0.2.250:7835",
      flags: ["--once", "--dry-run", "--timeout", "1"],
    });
    expect([previewed.code, previewed.stderr]).toEqual([
      75,
      expect.stringMatching(
        /^Cannot see the whole mesh within 1 s: no full .* Curator \(connecting to "192\.0\.2\.250:7835"\)$/m,
      ),
    ]);
    expect((await place.machine.exec(["wg", "show", "clusternet", "peers"])).trim()).toBe(paper.key);
    await shared.curator.call.remove("b");
  });

  test("announces while it waits for the end of the picture: what each may take 10 s is waited for side by side", async () => {
    await using place = await Place.create();
    const { call } = shared.curator;
    const before = (await call.seen()).announcements.length;
    await call.style({ last: "hold" });
    try {
      const { process } = place.spawn({ flags: ["--once"] });
      await waitFor(async () => (await call.seen()).announcements.length > before, {
        limitMs: soonMs,
        what: "the announcement",
        detail: () => process.describe(),
      });
      expect(process.exit).toBeUndefined();
      await call.releaseLast();
      await waitFor(() => process.exit !== undefined, { limitMs: soonMs, what: "the end" });
      expect([process.exit?.code, process.stderr]).toEqual([0, expect.stringContaining("In step")]);
    } finally {
      await call.style({});
    }
  });

  test("ends only when the whole picture holds, also when it comes while the first mesh is applied", async () => {
    const ids = ["b", "c", "d", "e"];
    const papers = ids.map((id, at) => paperNode(id, `198.51.100.${at + 1}`, [`10.192.${at + 20}.0/24`]));
    for (const paper of papers) await shared.curator.call.put(paper.bytes);
    for (let round = 0; round < 3; round++) {
      await using place = await Place.create();
      // The first apply is slow enough for the picture to come meanwhile.
      const slow = await shared.lab.directory();
      await writeFile(
        join(slow, "wireguard-go"),
        `#!/bin/sh\nsleep 0.7\nexec ${Bun.which("wireguard-go")} "$@"\n`,
      );
      await chmod(join(slow, "wireguard-go"), 0o755);
      expect((await place.run({ flags: ["--once"], path: slow })).code).toBe(0);
      const shown = await place.machine.exec(["wg", "show", "clusternet", "peers"]);
      expect(shown.trim().split("\n").toSorted()).toEqual(papers.map(({ key }) => key).toSorted());
      const file = await readFile(join(place.data, "clusternet.conf"), "utf8");
      expect(file.match(/^\[Peer\]$/gm)).toHaveLength(4);
    }
    for (const id of ids) await shared.curator.call.remove(id);
  });

  test("--dry-run prints file and steps, the key hidden, and changes nothing, also beside a running agent", async () => {
    await using place = await Place.create();
    const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
    await shared.curator.call.put(paper.bytes);
    const before = await snapshot(place.machine);
    const announced = (await shared.curator.call.seen()).announcements.length;
    const fresh = await place.run({ flags: ["--once", "--dry-run"] });
    expect(fresh.code).toBe(0);
    expect(existsSync(place.data)).toBe(false);
    expect(await snapshot(place.machine)).toEqual(before);
    expect((await shared.curator.call.seen()).announcements.length).toBe(announced);
    const wanted = [
      /^PrivateKey = \(hidden\)$/m,
      new RegExp(`^PublicKey = ${RegExp.escape(paper.key)}$`, "m"),
      /^# node = b$/m,
      /ip link/,
      /^ip -4 route add 10\.192\.0\.0\/11 dev clusternet /m,
    ];
    expect(wanted.filter((pattern) => !pattern.test(fresh.stdout)).map(String)).toEqual([]);
    const announcement = (key: string): string =>
      [
        `# public key: ${key}`,
        `# endpoint: ${place.machine.address}:7838`,
        `# prefixes: ${place.machine.address}/32, 10.192.1.0/24`,
        "# status: reported when the Curator has missed one for 10 s (--report-status on: at once)",
      ].join("\n");
    expect(announcementIn(fresh.stdout)).toBe(announcement("made by the first run"));

    const agent = await place.start();
    await agent.peers((peers) => peers.length === 1, soonMs);
    await agent.status((status) => status.node.announcedAt !== null, soonMs);
    const during = await snapshot(place.machine);
    const beside = await place.run({ flags: ["--once", "--dry-run"] });
    expect([beside.code, beside.stdout]).toEqual([
      0,
      expect.stringContaining("# nothing: this host is as wanted"),
    ]);
    expect(announcementIn(beside.stdout)).toBe(announcement(await publicKeyOf(place.machine)));
    const secret = (await readFile(join(place.data, "private.key"), "utf8")).trim();
    expect(beside.stdout + beside.stderr).not.toContain(secret.slice(0, 20));
    // With another interface the former one would be taken away first, which holds the port and the routes.
    const files = readdirSync(place.data).toSorted();
    const renamed = await place.run({ interfaceName: "cn2", flags: ["--once", "--dry-run"] });
    expect([
      renamed.code,
      renamed.stdout.replace(/^[^]*# Commands\n|\n# Announcement[^]*$/g, "").split("\n"),
    ]).toEqual([
      0,
      [
        "ip link delete dev clusternet",
        "wireguard-go cn2",
        "ip link set dev cn2 group 9 mtu 1420",
        `wg syncconf cn2 ${join(place.data, "cn2.conf")}`,
        "ip link set dev cn2 up",
        "ip -4 route add 10.192.0.0/11 dev cn2 proto 129 src 10.192.1.1",
        "ip -6 route add fd10:c1::/32 dev cn2 proto 129",
        "",
      ],
    ]);
    // With another network, what is there of this one would be taken away: the agent that keeps it has ended then.
    const moved = await place.run({ flags: ["--once", "--dry-run", "--cluster-net", "172.16.0.0/12"] });
    // This node's pod prefix is outside of it, of which a run would say the same.
    expect([moved.code, moved.stdout.match(/^ip .* delete .*$/gm)]).toEqual([
      3,
      [
        // Takes the route of IPv4 with it, of which it is the source.
        "ip address delete 10.192.1.1/32 dev lo",
        "ip -4 route delete unreachable 10.192.0.0/11 proto 129 metric 4294967295",
        "ip -6 route delete unreachable fd10:c1::/32 proto 129 metric 4294967295",
        "ip -6 route delete fd10:c1::/32 dev clusternet proto 129 metric 1024",
      ],
    ]);
    expect(readdirSync(place.data).toSorted()).toEqual(files);
    expect(await snapshot(place.machine)).toEqual(during);
    await shared.curator.call.remove("b");
  });
});

describe("status", () => {
  test("--check is 0 for a good mesh, 3 for a problem and without an agent; a stopped agent is passed over in 3 s", async () => {
    await using place = await Place.create();
    const agent = await place.start();
    await agent.status((status) => status.node.announcedAt !== null, soonMs);
    const check = async (): Promise<number | undefined> => (await place.command("status", "--check")).code;
    expect(await check()).toBe(0);
    // Asked with another directory, it says where the agent is.
    const none = join(place.data, "none");
    const elsewhere = await place.machine.run([executable, "status", "--check", "--data-dir", none]);
    expect([elsewhere.code, elsewhere.stdout]).toEqual([
      3,
      expect.stringContaining(`ask it with: clusternet status --data-dir ${place.data}\n`),
    ]);
    expect(elsewhere.stdout).toContain(
      `no agent runs on data directory "${none}" with interface "clusternet"`,
    );
    await shared.curator.call.put(node({ id: "b", key: "unusable", address: "198.51.100.1" }));
    await agent.status(({ problems }) => problems.length > 0, soonMs);
    expect(await check()).toBe(3);
    await shared.curator.call.remove("b");
    await agent.status(({ problems }) => problems.length === 0, soonMs);
    expect(await check()).toBe(0);

    agent.process.kill("SIGSTOP");
    const started = performance.now();
    const stopped = await place.command("status", "--check");
    expect(performance.now() - started).toBeLessThan(3_500);
    expect([stopped.code, stopped.stdout]).toEqual([3, expect.stringContaining("clusternet.sock")]);
    agent.process.kill("SIGCONT");
    expect(await check()).toBe(0);
    await agent.process.stop();
    expect(await check()).toBe(3);
  });
});

describe("an interface name", () => {
  test.each(["clusternet-0123456", "a/b", "a b", ".", "", "all", "default", "lo", "-x"])(
    "%p is refused with 64 and the limit, and nothing is made (case 31)",
    async (name) => {
      await using place = await Place.create();
      const before = await snapshot(place.machine);
      const { code, stderr } = await place.run({ flags: [`--interface=${name}`] });
      expect([code, stderr]).toEqual([64, expect.stringContaining("1 to 15 characters")]);
      expect(existsSync(place.data)).toBe(false);
      expect(await snapshot(place.machine)).toEqual(before);
    },
  );
});
