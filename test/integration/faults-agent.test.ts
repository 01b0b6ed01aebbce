/**
 * The agent killed, stopped, replaced, started in bad surroundings, and what it works with taken away under it, under
 * traffic: the mesh does not feel what need not be felt, and is whole again after the rest (C4.10, C4.11).
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { copyFile, mkdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import { compile } from "../../scripts/build.ts";
import { node } from "../fakes/curator.ts";
import { Agent, executable, podOf } from "../lab/agent.ts";
import { breakages, BrokenPrograms, type Breakage } from "../lab/broken-programs.ts";
import { newKey } from "../lab/bare-peer.ts";
import { underTraffic, unharmed } from "../lab/fault.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { long } from "../lab/long.ts";
import { processesOf } from "../lab/remains.ts";
import { finishPing, nothingLost, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

/** Its multiples, whole parts left out, lie nowhere close together. */
const goldenRatio = 0.618_034;

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** Everything of the interface that traffic does not change. */
async function dump({ agent }: Stage): Promise<readonly string[]> {
  const shown = await agent.machine.exec(["wg", "show", "clusternet", "dump"]);
  return shown
    .trimEnd()
    .split("\n")
    .map((line, at) => {
      const fields = line.split("\t");
      // Not the private key; of a peer neither handshake nor counters.
      return at === 0 ? fields.slice(1).join(" ") : [...fields.slice(0, 4), fields[7]].join(" ");
    })
    .toSorted();
}

/** The process that has the agent's port. */
async function wireguardGoOf({ agent }: Stage): Promise<number> {
  const shown = await agent.machine.exec(["ss", "-Hulpn", "sport", "=", ":7838"]);
  const pid = Number(/pid=(\d+)/.exec(shown)?.[1]);
  return pid > 0 ? pid : expect.unreachable();
}

/** Of what must be made again packets get lost for as long as that takes, here three seconds at most. */
const untilWhole = 600;

describe("an agent", () => {
  test("that is stopped with its whole process group leaves the mesh and what it announced", async () => {
    await using stage = await Stage.create(lab, { agent: async () => ({ wrapper: ["/usr/bin/setsid"] }) });
    const b = await stage.peer("b", 2);
    await stage.agent.status((status) => status.node.announcedAt !== null, soonMs);
    const before = await dump(stage);
    await stage.recorder.clear();
    const { announcements } = await stage.curator.call.seen();
    const outcome = await underTraffic(
      stage,
      b,
      "agent's process group stopped with SIGTERM",
      async (fault) => {
        await fault.make(async () => {
          process.kill(-stage.agent.process.pid, "SIGTERM");
          expect(await stage.agent.process.exited).toEqual({ code: 0, signal: undefined });
        });
      },
    );
    expect(outcome).toEqual(unharmed);
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await dump(stage)).toEqual(before);
    expect((await stage.curator.call.seen()).announcements).toEqual(announcements);
  });

  test("that is killed at any moment of a flow of changes leaves a whole file, and the mesh is right after each start", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    const flow = new Flow(stage);
    const kills = long ? 50 : 8;
    const outcome = await underTraffic(
      stage,
      b,
      `agent killed with SIGKILL ${kills} times`,
      async (fault) => {
        for (let kill = 0; kill < kills; kill++) {
          const flowing = flow.start();
          // Moments all over the first 300 ms, that of a start among them, the same in each run: nothing is waited for.
          await Bun.sleep(((kill * goldenRatio) % 1) * 300);
          await fault.make(() => stage.agent.kill());
          const held = flow.numberIn(await readFile(stage.file, "utf8"));
          expect(held).toBeGreaterThanOrEqual(flow.settled);
          expect(held).toBeLessThanOrEqual(flow.sent);
          stage.agent = await stage.agent.restart();
          await flow.stop(flowing);
          await fault.heal(() => stage.holds([b.allowed, ...flow.allowed]));
          expect(flow.numberIn(await readFile(stage.file, "utf8"))).toBe(flow.sent);
          flow.settled = flow.sent;
        }
      },
    );
    expect(outcome).toEqual(unharmed);
    expect(flow.sent).toBeGreaterThan(kills * 4);
  });

  test("that is replaced by a newer executable goes on as that one, and nothing is withdrawn", async () => {
    const directory = await lab.directory();
    const program = join(directory, "clusternet");
    await copyFile(executable, program);
    const next = join(directory, "clusternet-next");
    await compile(next, "99.0.0-next");
    await using stage = await Stage.create(lab, { agent: async () => ({ executable: program }) });
    const b = await stage.peer("b", 2);
    await stage.agent.status((status) => status.node.announcedAt !== null, soonMs);
    const before = await dump(stage);
    await stage.recorder.clear();
    const outcome = await underTraffic(stage, b, "agent replaced by a newer executable", async (fault) => {
      await fault.make(async () => {
        await rename(next, program);
        expect(await stage.agent.process.stop()).toEqual({ code: 0, signal: undefined });
      });
      await fault.heal(async () => {
        stage.agent = await stage.agent.restart();
        await stage.agent.status(
          ({ version, agent, curator }) => version === "99.0.0-next" && agent.ready && curator.fullPicture,
          soonMs,
        );
      });
    });
    expect(outcome).toEqual(unharmed);
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await dump(stage)).toEqual(before);
    // Each start announces, and says the same.
    const said = (await stage.curator.call.seen()).announcements.map(({ key, prefixes }) => [key, prefixes]);
    expect(new Set(said.map((each) => JSON.stringify(each))).size).toBe(1);
  });

  test("on a machine that boots with no Curator has the mesh of the last file within 2 s, and says so (case 26)", async () => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    const b = await stage.peer("b", 2);
    // Written whole when the peer was added.
    const { mtime } = await stat(stage.file);
    await stage.agent.kill();
    await stage.curator[Symbol.asyncDispose]();
    const outcome = await underTraffic(stage, b, "booted with no Curator", async (fault) => {
      await fault.make(async () => {
        // As after a boot: nothing of it is left but the files.
        await machine.ip(
          "link delete clusternet",
          "route flush exact 10.192.0.0/11",
          "route flush exact fd10:c1::/32",
          "address flush dev lo to 10.192.0.0/11",
        );
      });
      await fault.heal(async () => {
        const startedMs = performance.now();
        stage.agent = await stage.agent.restart();
        await stage.holds([b.allowed]);
        await machine.reach(b.target, { limitMs: soonMs });
        expect(performance.now() - startedMs).toBeLessThan(2_000);
      });
      const { agent, source, sourceAt } = await stage.agent.status(
        (found) => found.agent.ready && found.problems.some(({ kind }) => kind === "curator-unreachable"),
        2 * soonMs,
      );
      expect({ agent, source, sourceAt }).toMatchObject({
        agent: {
          ready: true,
          reasons: [expect.stringMatching(/^the mesh is from the file, as of .* \(\d+ s ago\): /)],
        },
        source: "file",
        sourceAt: mtime.toISOString(),
      });
    });
    // Before the agent is started nothing of it keeps packets from another way out, and none come back.
    expect(outcome.lost).toBeLessThan(untilWhole);
    expect(await finishPing(machine.ping(b.target), 100)).toEqual(nothingLost);
  });
});

/** All of the host's network that an agent may touch, and what is beside it. */
async function surroundings({ machine, interfaceName }: Agent): Promise<string> {
  const commands = [
    "ip -o link",
    "ip -4 route show table main",
    "ip -6 route show table main",
    "ip -o address show dev lo",
    `wg show ${interfaceName} listen-port`,
    `ls /run/wireguard`,
  ];
  const said = await Promise.all(commands.map((command) => machine.exec(command.split(" "))));
  return sortedLines(said.join(""));
}

/** Without the index of a link, link-local routes, and the default route that is there to watch for leaks. */
function sortedLines(text: string): string {
  return text
    .split("\n")
    .map((line) => line.replace(/^\d+: /, "").trim())
    .filter((line) => line !== "" && !/^fe80:| metric 32000\b/.test(line))
    .toSorted()
    .join("\n");
}

describe("an agent that is started with other settings", () => {
  const resync = ["--resync", "1"];
  test.each([
    {
      name: "another --interface",
      other: { interfaceName: "mesh1" },
      moved: (text: string) => text.replaceAll("clusternet", "mesh1"),
      mayLose: untilWhole,
    },
    {
      name: "a narrower --cluster-net",
      other: { flags: [...resync, "--cluster-net", "10.192.0.0/12", "--cluster-net", "fd10:c1::/48"] },
      moved: (text: string) =>
        text.replaceAll("10.192.0.0/11", "10.192.0.0/12").replaceAll("fd10:c1::/32", "fd10:c1::/48"),
      mayLose: 0,
    },
    {
      name: "a wider --cluster-net",
      other: { flags: [...resync, "--cluster-net", "10.192.0.0/10", "--cluster-net", "fd10:c1::/32"] },
      moved: (text: string) => text.replaceAll("10.192.0.0/11", "10.192.0.0/10"),
      mayLose: 0,
    },
    {
      name: "another --listen-port",
      other: { flags: [...resync, "--listen-port", "7999"] },
      moved: (text: string) => text.replace(/^7838$/m, "7999"),
      // What is on its way to the port that is closed.
      mayLose: 40,
    },
  ])("$name takes away what was there before, and nothing else", async ({ name, other, moved, mayLose }) => {
    await using stage = await Stage.create(lab, { agent: async () => ({ pod: podOf(1) }) });
    const { machine } = stage.agent;
    const b = await stage.peer("b", 2);
    await machine.ip(
      "address add 203.0.113.7/32 dev lo",
      "address add 10.192.1.77/32 dev lo",
      "route add 198.51.101.0/24 dev eth0 proto 129",
      "route add 10.200.0.0/16 dev eth0 proto static",
    );
    const wanted = sortedLines(moved(await surroundings(stage.agent)));
    await stage.agent.process.stop();
    const outcome = await underTraffic(stage, b, `started with ${name}`, async (fault) => {
      await fault.make(async () => {
        stage.agent = await stage.agent.restart(other);
      });
      let found = "";
      await fault.heal(async () => {
        await waitFor(async () => (found = await surroundings(stage.agent)) === wanted, {
          limitMs: soonMs,
          what: `these surroundings:\n${wanted}`,
          detail: () => `${found}\n${stage.agent.process.describe()}`,
        });
        await machine.reach(b.target, { limitMs: soonMs });
      });
    });
    expect(outcome.leaked).toEqual([]);
    expect(outcome.lost).toBeLessThanOrEqual(mayLose);
    await stage.holds([b.allowed]);
    expect(await stage.problems((problems) => problems.length === 0)).toEqual([]);
  });

  test("of a cluster network that another agent routes ends with 75 and names it, which does not feel it", async () => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    const b = await stage.peer("b", 2);
    const before = await surroundings(stage.agent);
    await stage.recorder.clear();
    const outcome = await underTraffic(
      stage,
      b,
      "second agent with the same cluster network",
      async (fault) => {
        await fault.make(async () => {
          const second = Agent.spawn(machine, {
            curator: stage.curator.address,
            directory: await lab.directory(),
            nodeId: "second",
            interfaceName: "mesh2",
            flags: ["--listen-port", "7999"],
          });
          const { code } = await second.process.exited;
          const says = new RegExp(
            `cluster network "10.192.0.0/11": process ${stage.agent.process.pid} .*--cluster-net`,
            "s",
          );
          expect([code, second.process.stderr]).toEqual([75, expect.stringMatching(says)]);
        });
      },
    );
    expect(outcome).toEqual(unharmed);
    expect(await surroundings(stage.agent)).toBe(before);
    expect(await stage.recorder.changes()).toEqual([]);
  });
});

describe("what is somebody else's", () => {
  test.each([
    {
      name: "another program's route for the cluster network",
      kind: "route-foreign",
      put: ["route replace unreachable 10.192.0.0/11 proto static"],
      look: ["ip", "route", "show", "10.192.0.0/11"],
      take: ["route delete unreachable 10.192.0.0/11 proto static"],
    },
    {
      name: "somebody else's interface of our name",
      kind: "interface-foreign",
      put: ["link delete clusternet", "link add clusternet type bridge"],
      look: ["ip", "-d", "link", "show", "clusternet"],
      take: ["link delete clusternet"],
    },
  ])(
    "$name comes: it is left alone and reported, and when it goes all is as before",
    async ({ name, kind, put, look, take }) => {
      await using stage = await Stage.create(lab);
      const { machine } = stage.agent;
      const b = await stage.peer("b", 2);
      const before = await surroundings(stage.agent);
      const outcome = await underTraffic(stage, b, name, async (fault) => {
        await machine.ip(...put);
        const foreign = await machine.exec(look);
        await stage.problems((found) => found.includes(`${kind} -`));
        // Comparisons go on, and change nothing of it.
        await stage.agent.process.waitForLine(new RegExp(`WARN .*problem=${kind}`), { limitMs: soonMs });
        await stage.recorder.clear();
        await waitFor(
          async () =>
            (await stage.recorder.calls()).filter((call) => call.join(" ").includes("address show")).length >
            2,
          {
            limitMs: soonMs,
            what: "two more readings of the host",
          },
        );
        expect(await machine.exec(look)).toBe(foreign);
        expect(await stage.recorder.changes()).toEqual([]);
        await fault.make(() => machine.ip(...take));
        await fault.heal(async () => {
          await waitFor(async () => (await surroundings(stage.agent)) === before, {
            limitMs: soonMs,
            what: before,
          });
          await machine.reach(b.target, { limitMs: soonMs });
          await stage.problems((found) => found.length === 0);
        });
      });
      expect(outcome.leaked).toEqual([]);
      expect(await finishPing(machine.ping(b.target), 100)).toEqual(nothingLost);
    },
  );
});

/** What an agent writes in its data directory. */
const files = ["private.key", "clusternet.conf", "clusternet.state"];

describe("what an agent works with", () => {
  test.each(breakages)(
    "is wg or ip %s: reported and tried again, the status answers, and the mesh follows when it is mended",
    async (how) => {
      // Both to their end, also when one fails: each cleans up after itself.
      const ends = await Promise.allSettled(["wg", "ip"].map((program) => breakUnderTraffic(program, how)));
      for (const end of ends) if (end.status === "rejected") throw end.reason;
    },
  );

  test.each(breakages.filter((how) => how !== "missing"))(
    "is wg and ip %s at its start: it does not end, says so, and goes on when they are mended",
    async (how) => {
      const programs = await BrokenPrograms.create(await lab.directory());
      await using stage = await Stage.create(lab, { agent: async () => ({ wrapper: programs.wrapper }) });
      const b = await stage.peer("b", 2);
      await stage.agent.kill();
      const outcome = await underTraffic(stage, b, `wg and ip ${how} at the start`, async (fault) => {
        await fault.make(async () => {
          await programs.break("wg", how);
          await programs.break("ip", how);
          stage.agent = stage.agent.spawnAgain();
        });
        await stage.agent.process.waitForLine(/WARN .*problem=apply-failed/, { limitMs: 40_000 });
        await programs.mend("wg");
        await programs.mend("ip");
        await fault.heal(async () => {
          await stage.agent.status(({ agent, problems }) => agent.ready && problems.length === 0, 2 * soonMs);
        });
      });
      expect(outcome).toEqual(unharmed);
    },
  );

  test.each([
    { name: "a first start is stopped, and makes no key", again: false, flags: [], stop: true, code: 0 },
    { name: "a later start is stopped", again: true, flags: [], stop: true, code: 0 },
    // Of which nothing was printed.
    { name: "--dry-run is stopped", again: true, flags: ["--once", "--dry-run"], stop: true, code: 1 },
    { name: "--once has its time", again: true, flags: ["--once", "--timeout", "1"], stop: false, code: 75 },
  ])("is wg and ip hanging while it starts: $name, soon", async ({ again, flags, stop, code }) => {
    // Of its own: in one where an agent was killed, programs that it ran may hang still.
    await using quiet = await Lab.create();
    const programs = await BrokenPrograms.create(await quiet.directory());
    const directory = await quiet.directory();
    const keyFile = join(directory, "a", "private.key");
    if (again) {
      await mkdir(dirname(keyFile), { mode: 0o700 });
      await writeFile(keyFile, `${newKey().reveal()}\n`, { mode: 0o600 });
    }
    for (const program of ["wg", "ip"]) await programs.break(program, "hanging");
    const options = { curator: "192.0.2.250:7835", directory, nodeId: "a", flags, wrapper: programs.wrapper };
    await using agent = Agent.spawn(await quiet.machine("a"), options);
    const hanging = () => commandsIn(quiet, hangs);
    await waitFor(async () => (await hanging()).length > 0, {
      limitMs: soonMs,
      what: "a program that hangs",
    });
    const fromMs = performance.now();
    if (stop) agent.process.kill("SIGTERM");
    const exit = await agent.process.exited;
    // A program that hangs is ended after 10 s.
    expect(performance.now() - fromMs).toBeLessThan(5_000);
    expect([exit, existsSync(keyFile), await hanging()]).toEqual([{ code, signal: undefined }, again, []]);
  });

  test("is a wireguard-go that is killed: another one is started, and the mesh is right again", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    const before = await dump(stage);
    const pid = await wireguardGoOf(stage);
    const outcome = await underTraffic(stage, b, "wireguard-go killed", async (fault) => {
      await fault.make(async () => {
        process.kill(pid, "SIGKILL");
      });
      await fault.heal(async () => {
        await stage.holds([b.allowed]);
        await stage.agent.machine.reach(b.target, { limitMs: soonMs });
      });
    });
    expect(outcome.leaked).toEqual([]);
    expect(outcome.lost).toBeLessThan(untilWhole);
    expect(await dump(stage)).toEqual(before);
    expect(await finishPing(stage.agent.machine.ping(b.target), 100)).toEqual(nothingLost);
  });

  test("is a wireguard-go that is stopped: named with what lets it go on, and a problem as long as it is", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    const paper = paperNode("c", "198.51.100.1", ["10.192.3.0/24"]);
    const pid = await wireguardGoOf(stage);
    process.kill(pid, "SIGSTOP");
    try {
      await stage.curator.call.put(paper.bytes);
      // What hangs is ended after 10 s.
      await stage.agent.process.waitForLine(/WARN +Cannot set 1 peer .*problem=apply-failed/, {
        limitMs: 10_000 + soonMs,
      });
      const { problems } = await stage.agent.status((status) => status.problems.length > 0, soonMs);
      expect(problems[0]?.message).toContain(`process ${pid} (`);
      expect(problems[0]?.message).toContain(`is stopped: \`kill -CONT ${pid}\` lets it go on`);
    } finally {
      process.kill(pid, "SIGCONT");
    }
    await stage.holds([b.allowed, paper.allowed]);
    await stage.problems((problems) => problems.length === 0, 2 * soonMs);
  });

  test("is a data directory that is removed: it is made again, with the same key", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    await stage.agent.status((status) => status.node.announcedAt !== null, soonMs);
    const before = await dump(stage);
    const { dataDirectory } = stage.agent;
    const paths = files.map((name) => join(dataDirectory, name));
    const contents = paths.map((path) => readFileSync(path, "utf8"));
    await stage.recorder.clear();
    const outcome = await underTraffic(stage, b, "data directory removed", async (fault) => {
      await fault.make(() => rm(dataDirectory, { recursive: true }));
      await fault.heal(async () => {
        for (const path of [...paths, join(dataDirectory, "clusternet.sock")]) {
          await waitFor(() => existsSync(path), {
            limitMs: soonMs,
            what: path,
            detail: () => stage.agent.process.describe(),
          });
        }
        await stage.problems((found) => found.length === 0);
      });
    });
    expect(outcome).toEqual(unharmed);
    expect(paths.map((path) => readFileSync(path, "utf8"))).toEqual(contents);
    const modes = await Promise.all(
      [dataDirectory, ...paths].map(async (path) => (await stat(path)).mode & 0o777),
    );
    expect(modes).toEqual([0o700, 0o600, 0o600, 0o600]);
    await stage.agent.process.waitForLine(/same key was written back/, { limitMs: 1_000 });
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await dump(stage)).toEqual(before);
  });

  test.each([
    {
      name: "disk full",
      // The socket needs no more room than the one before it, which is closed first.
      unwritable: files,
      make: async (disk: string) => {
        // Neither a byte nor a name is left.
        await Bun.$`dd if=/dev/zero of=${disk}/ballast bs=4096`.nothrow().quiet();
        await Bun.$`sh -c 'i=0; while : >"$0/name-$i"; do i=$((i+1)); done' ${disk}`.nothrow().quiet();
      },
      heal: async (disk: string) => void (await Bun.$`sh -c 'rm "$0"/ballast "$0"/name-*' ${disk}`.quiet()),
    },
    {
      name: "disk read-only",
      unwritable: [...files, "clusternet.sock"],
      make: async (_disk: string, machine: Machine) =>
        void (await machine.exec(["mount", "-o", "remount,ro,bind", "/mnt"])),
      heal: async (_disk: string, machine: Machine) =>
        void (await machine.exec(["mount", "-o", "remount,rw,bind", "/mnt"])),
    },
  ])(
    "is a $name, at every file: the mesh goes on, it is reported, and all is written later",
    async ({ name, unwritable, make, heal }) => {
      await using stage = await Stage.create(lab, {
        agent: async (machine) => {
          await machine.exec([
            "mount",
            "-t",
            "tmpfs",
            "-o",
            "size=128k,nr_inodes=32,mode=0700",
            "tmpfs",
            "/mnt",
          ]);
          // A way there that leads from outside of the machine too.
          return { directory: `/proc/${machine.namespace.pid}/root/mnt` };
        },
      });
      const { machine, dataDirectory } = stage.agent;
      const disk = join(dataDirectory, "..");
      const b = await stage.peer("b", 2);
      await stage.agent.status((status) => status.node.announcedAt !== null, soonMs);
      const names = [...files, "clusternet.sock"];
      const key = await readFile(join(dataDirectory, "private.key"), "utf8");
      const paper = paperNode("c", "198.51.100.1", ["10.192.3.0/24"]);
      const outcome = await underTraffic(stage, b, name, async (fault) => {
        await fault.make(async () => {
          // So that each has to be made again, and not before the disk takes nothing any more.
          stage.agent.process.kill("SIGSTOP");
          await Promise.all(names.map((each) => rm(join(dataDirectory, each))));
          await make(disk, machine);
          stage.agent.process.kill("SIGCONT");
          await stage.curator.call.put(paper.bytes);
        });
        await stage.holds([b.allowed, paper.allowed]);
        for (const each of unwritable) {
          const reported = new RegExp(`WARN .*${RegExp.escape(each)}.*problem=file-unwritable`);
          await stage.agent.process.waitForLine(reported, { limitMs: soonMs });
        }
        const { lines } = stage.agent.process;
        const reports = lines.filter(({ text }) => /WARN .*problem=file-unwritable/.test(text));
        // Each once: what lasts is no news.
        expect(reports.length).toBe(unwritable.length);
        await heal(disk, machine);
        await fault.heal(async () => {
          await stage.problems((found) => found.length === 0, 2 * soonMs);
          for (const each of names) {
            await waitFor(() => existsSync(join(dataDirectory, each)), { limitMs: soonMs, what: each });
          }
        });
      });
      expect(outcome).toEqual(unharmed);
      expect(await readFile(join(dataDirectory, "private.key"), "utf8")).toBe(key);
      expect(await readFile(stage.file, "utf8")).toContain(paper.key);
    },
  );
});

/** A program is broken while a change has to be applied, and mended when that was reported. */
async function breakUnderTraffic(program: string, how: Breakage): Promise<void> {
  const programs = await BrokenPrograms.create(await lab.directory());
  await using stage = await Stage.create(lab, { agent: async () => ({ wrapper: programs.wrapper }) });
  const { machine } = stage.agent;
  const b = await stage.peer("b", 2);
  const paper = paperNode("c", "198.51.100.1", ["10.192.3.0/24"]);
  const outcome = await underTraffic(stage, b, `${program} ${how}`, async (fault) => {
    await fault.make(async () => {
      await programs.break(program, how);
      await stage.curator.call.put(paper.bytes);
    });
    // A hanging one is ended after 10 s.
    await stage.agent.process.waitForLine(/WARN .*problem=apply-failed/, { limitMs: 10_000 + soonMs });
    const startedMs = performance.now();
    const argv = [executable, "status", "--json", "--data-dir", stage.agent.dataDirectory];
    const told = JSON.parse(await machine.exec(argv));
    expect(performance.now() - startedMs).toBeLessThan(4_000);
    expect(told).toMatchObject({
      agent: { running: true, ready: true },
      peers: [{ id: "b" }, { id: "c" }],
    });
    expect(stage.agent.process.exit).toBeUndefined();
    await programs.mend(program);
    await fault.heal(async () => {
      await stage.holds([b.allowed, paper.allowed], 2 * soonMs);
      await stage.problems((found) => found.length === 0, 2 * soonMs);
    });
  });
  expect(outcome).toEqual(unharmed);
}

/** A program of `BrokenPrograms` that hangs. */
const hangs = /^\/bin\/sleep 3600 $/;

/** Command lines in the lab that match. */
async function commandsIn({ mark }: Lab, pattern: RegExp): Promise<readonly string[]> {
  const lines = await Promise.all(
    processesOf(mark).map(async (pid) => {
      // One that has just ended cannot be read.
      const text = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
      return text.replaceAll("\0", " ");
    }),
  );
  return lines.filter((line) => pattern.test(line));
}

/** Two nodes whose prefixes bear the number of the event that changed both. */
class Flow {
  readonly #stage: Stage;
  readonly #keys = [newKey().publicKey, newKey().publicKey] as const;
  #stopped = false;
  /** Number of the last event. */
  sent = 0;
  /** Number of the last event that is known to have been applied. */
  settled = 0;

  constructor(stage: Stage) {
    this.#stage = stage;
  }

  /** How the interface shows both after the last event. */
  get allowed(): readonly (readonly [string, string])[] {
    return this.#keys.map((key, at) => [key, prefixesOf(at, this.sent).join(",")]);
  }

  /** Sends until it is stopped. */
  async start(): Promise<void> {
    this.#stopped = false;
    while (!this.#stopped) {
      this.sent++;
      const nodes = this.#keys.map((key, at) => {
        const [host = "", prefix = ""] = prefixesOf(at, this.sent);
        return node({ id: `flow-${at}`, key, address: host.replace("/32", ""), prefixes: [host, prefix] });
      });
      await this.#stage.curator.call.putTogether(...nodes);
      await Bun.sleep(20);
    }
  }

  async stop(running: Promise<void>): Promise<void> {
    this.#stopped = true;
    await running;
  }

  /** Which event a file of the mesh is of; 0 before the first. Throws when it is not whole, or of two. */
  numberIn(text: string): number {
    const { nodes } = parseWgConfig(text);
    const numbers = this.#keys.map((key, at) => {
      const found = nodes.find(({ publicKey }) => publicKey === key);
      const texts = found?.prefixes.toSorted() ?? [];
      for (let number = this.sent; number > 0; number--) {
        if (Bun.deepEquals(texts, prefixesOf(at, number).toSorted())) return number;
      }
      return found === undefined ? 0 : undefined;
    });
    const [first, second] = numbers;
    if (first === undefined || first !== second)
      throw new Error(`The file is of events ${numbers.join(" and ")}`);
    return first;
  }
}

/** Host and pod prefix of node 0 or 1 after that event: good for 2,048 events. */
function prefixesOf(at: number, number: number): readonly string[] {
  return [`198.51.100.${at + 1}/32`, `10.${193 + at * 8 + (number >> 8)}.${number & 255}.0/24`];
}
