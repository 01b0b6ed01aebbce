/**
 * The host changed under a running agent: what it put there is put back, and what it must follow is followed.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Agent, executable, podOf } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { finishPing, freshMachine, nothingLost, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { processesOf } from "../lab/remains.ts";
import { waitFor } from "../lab/wait.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** What must hold of the interface and its surroundings, in one value. */
async function shape(machine: Machine): Promise<Record<string, unknown>> {
  const lines = async (...argv: readonly string[]): Promise<readonly string[]> =>
    (await machine.exec(argv))
      .split("\n")
      .map((line) => line.trim())
      .filter((line) => line !== "");
  const [link] = JSON.parse(await machine.exec(["ip", "-j", "link", "show", "clusternet"]));
  return {
    group: link.group,
    mtu: link.mtu,
    up: link.flags.includes("UP"),
    // Not the peers' endpoints and counters, which live.
    key: await lines("wg", "show", "clusternet", "public-key"),
    port: await lines("wg", "show", "clusternet", "listen-port"),
    allowed: (await lines("wg", "show", "clusternet", "allowed-ips")).toSorted(),
    routes: await lines("ip", "route", "show", "proto", "129"),
    routes6: await lines("ip", "-6", "route", "show", "proto", "129"),
    loopback: await lines("ip", "-o", "-4", "address", "show", "dev", "lo", "to", "10.192.0.0/11"),
  };
}

/** Waits until the shape is that again. */
async function back(stage: Stage, wanted: Record<string, unknown>, limitMs: number): Promise<void> {
  let last: unknown;
  await waitFor(
    async () => {
      last = await shape(stage.agent.machine);
      return Bun.deepEquals(last, wanted);
    },
    {
      limitMs,
      what: `the host as it was: ${JSON.stringify(wanted)}`,
      detail: () => `${JSON.stringify(last)}\n${stage.agent.process.describe()}`,
    },
  );
}

/** `--resync` of the agents here is 1 s; the rest is for a busy machine. */
const repairMs = 4_000;

describe("the interface", () => {
  test.each([
    { name: "deleted", commands: ["link delete clusternet"] },
    {
      name: "renamed",
      commands: ["link set clusternet down", "link set clusternet name other", "link set other up"],
    },
    { name: "set down", commands: ["link set clusternet down"] },
    {
      name: "given another MTU and group",
      commands: ["link set clusternet mtu 1200", "link set clusternet group 3"],
    },
  ])("is whole again after it was $name under traffic (case 19)", async ({ commands }) => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    const b = await stage.peer("b", 2);
    const paper = paperNode("c", "198.51.100.3", ["10.192.3.0/24"]);
    await stage.curator.call.put(paper.bytes);
    await stage.agent.peers((peers) => peers.length === 2, soonMs);
    const before = await shape(machine);
    expect(before).toMatchObject({ mtu: 1420, up: true, port: ["7838"] });
    const traffic = machine.ping(b.target);
    await traffic.sent(20, soonMs);
    const ownGroup = await shape(machine);
    expect(ownGroup["group"]).toBe("9");
    await machine.ip(...commands);
    await back(stage, before, repairMs);
    await machine.reach(b.target, { limitMs: soonMs });
    await traffic.stop();
    expect(await finishPing(machine.ping(b.target), 100)).toEqual(nothingLost);
    expect((await machine.run(["ip", "link", "show", "other"])).code).not.toBe(0);
    expect(await stage.problems(() => true)).toEqual([]);
  });

  test("has what somebody took from its peers, or gave to them, set right within the resync", async () => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    const kept = paperNode("kept", "198.51.100.1", ["10.192.3.0/24"]);
    const edited = paperNode("edited", "198.51.100.2", ["10.192.4.0/24"]);
    const stranger = paperNode("stranger", "198.51.100.9", []);
    await stage.curator.call.put(kept.bytes);
    await stage.curator.call.put(edited.bytes);
    await stage.holds([kept.allowed, edited.allowed]);
    // A stranger is taken away only by a picture that this node is part of.
    await stage.agent.status(({ node }) => node.announcedAt !== null, soonMs);
    const before = await shape(machine);
    const set = ["wg", "set", "clusternet"];
    await machine.exec([...set, "peer", kept.key, "remove"]);
    await machine.exec([
      ...set,
      "peer",
      edited.key,
      "allowed-ips",
      "10.192.4.0/25",
      "persistent-keepalive",
      "5",
    ]);
    await machine.exec([...set, "peer", stranger.key, "allowed-ips", "10.192.8.0/24"]);
    await machine.exec([...set, "listen-port", "7000"]);
    await back(stage, before, repairMs);
    const keyFile = join(await lab.directory(), "key");
    await writeFile(keyFile, newKey().reveal(), { mode: 0o600 });
    await machine.exec([...set, "private-key", keyFile]);
    await back(stage, before, repairMs);
    expect(await machine.exec(["wg", "show", "clusternet", "persistent-keepalive"])).not.toContain("\t5");
  });
});

describe("routes and addresses", () => {
  test("of ours come back at once when a network daemon flushes them (case 23)", async () => {
    // No resync in the time of this test: the kernel's word must do.
    await using stage = await Stage.create(lab, { flags: ["--resync", "600"] });
    const { machine } = stage.agent;
    const b = await stage.peer("b", 2);
    const before = await shape(machine);
    expect(before["loopback"]).toHaveLength(1);
    expect(before["routes6"]).toContainEqual(expect.stringMatching(/^unreachable fd10:c1::\/32 dev lo /));
    await machine.ip("route delete 10.192.0.0/11 dev clusternet", "address delete 10.192.1.1/32 dev lo");
    await back(stage, before, repairMs);
    await machine.ip("address delete 10.192.1.1/32 dev lo");
    await back(stage, before, repairMs);
    // Another source, and what goes with it when lo is set down: the guard of IPv6, by which nothing leaves unencrypted.
    await machine.ip("route replace 10.192.0.0/11 dev clusternet proto 129");
    await back(stage, before, repairMs);
    await machine.ip("link set lo down", "link set lo up");
    await back(stage, before, repairMs);
    await machine.ip("route flush proto 129");
    await machine.exec(["ip", "-6", "route", "flush", "proto", "129"]);
    await back(stage, before, repairMs);
    expect(await finishPing(machine.ping(b.target), 100)).toEqual(nothingLost);
  });

  test("are such that the host's own processes reach pods with a pod address, whatever else lo has (case 34)", async () => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    await machine.ip("address add 203.0.113.7/32 dev lo");
    await machine.exec(["sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done"]);
    const b = await stage.peer("b", 2);
    // What comes into B with another source than 10.192.1.1.
    await b.machine.exec(["nft", "-f", "-"], {
      stdin:
        "table inet seen {\nchain in {\ntype filter hook input priority 0;\niifname wg0 ip saddr 10.192.1.1 counter\niifname wg0 ip saddr != 10.192.1.1 counter\n}\n}\n",
    });
    expect(await finishPing(machine.ping(b.target))).toEqual(nothingLost);
    const shown = await b.machine.exec(["nft", "list", "table", "inet", "seen"]);
    const [right, other] = [...shown.matchAll(/counter packets (\d+)/g)].map(([, packets]) =>
      Number(packets),
    );
    expect(right).toBeGreaterThan(100);
    expect(other).toBe(0);
    expect(await machine.exec(["ip", "-o", "address", "show", "dev", "lo"])).toContain("203.0.113.7/32");
  });
});

const mtuIs = async (machine: Machine, wanted: number): Promise<void> => {
  await waitFor(
    async () => JSON.parse(await machine.exec(["ip", "-j", "link", "show", "clusternet"]))[0].mtu === wanted,
    { limitMs: repairMs, what: `MTU ${wanted}` },
  );
};

describe("the MTU", () => {
  test("follows the underlay's, and stays at 1280 with a report where IPv6 needs more than fits (case 35)", async () => {
    await using stage = await Stage.create(lab);
    const { machine } = stage.agent;
    await mtuIs(machine, 1420);
    for (const [underlay, wanted] of [
      [1460, 1380],
      [9001, 8921],
      [1400, 1320],
      [1500, 1420],
    ] as const) {
      await machine.ip(`link set eth0 mtu ${underlay}`);
      await mtuIs(machine, wanted);
    }
    expect(await stage.problems(() => true)).toEqual([]);
    await machine.ip("link set eth0 mtu 1300");
    await mtuIs(machine, 1280);
    expect(await stage.problems((found) => found.length > 0)).toEqual(["mtu-too-small -"]);
    await machine.ip("link set eth0 mtu 1500");
    await mtuIs(machine, 1420);
    expect(await stage.problems((found) => found.length === 0)).toEqual([]);
  });

  test("is the given one whatever the underlay has (case 35)", async () => {
    await using stage = await Stage.create(lab, { flags: ["--mtu", "1300"] });
    const { machine } = stage.agent;
    await mtuIs(machine, 1300);
    await machine.ip("link set eth0 mtu 9001");
    await stage.resyncs(2);
    await mtuIs(machine, 1300);
  });
});

test("a wg that hangs is ended and reported, and what it should have done is done later", async () => {
  const directory = await lab.directory();
  const flag = join(directory, "hang");
  const flagForAll = join(directory, "hang-all");
  const wrapper = join(directory, "wg");
  const real = Bun.which("wg") ?? "wg";
  await writeFile(
    wrapper,
    `#!/bin/sh\n[ -e '${flagForAll}' ] && exec sleep 3600\ncase "$1" in set|syncconf) [ -e '${flag}' ] && rm '${flag}' && exec sleep 3600 ;; esac\nexec '${real}' "$@"\n`,
  );
  await chmod(wrapper, 0o755);
  await using stage = await Stage.create(lab);
  await stage.agent.kill();
  const agent = await Agent.start(await freshMachine(lab, "hang"), {
    curator: stage.curator.address,
    directory: await lab.directory(),
    nodeId: "a",
    pod: podOf(1).slice(0, 1),
    path: directory,
  });
  stage.agent = agent;
  await agent.status(({ curator }) => curator.fullPicture, soonMs);
  const first = paperNode("c", "198.51.100.2", ["10.192.3.0/24"]);
  await stage.curator.call.put(first.bytes);
  await stage.holds([first.allowed]);
  const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
  await writeFile(flag, "");
  await stage.curator.call.put(paper.bytes);
  await agent.process.waitForLine(/WARN .*still running after 10 s.*problem=apply-failed/, {
    limitMs: 15_000,
  });
  await stage.holds([first.allowed, paper.allowed], 15_000);
  expect(await stage.problems((found) => found.length === 0)).toEqual([]);
  const sleeping = await Promise.all(
    processesOf(lab.mark).map(
      async (pid) =>
        await Bun.file(`/proc/${pid}/cmdline`)
          .text()
          .catch(() => ""),
    ),
  );
  expect(sleeping.filter((line) => line.startsWith("sleep"))).toEqual([]);

  // Not even the counters can be read: what the agent knows is told all the same.
  await writeFile(flagForAll, "");
  const started = performance.now();
  const told = await agent.machine.exec([executable, "status", "--json", "--data-dir", agent.dataDirectory]);
  expect(performance.now() - started).toBeLessThan(4_000);
  expect(JSON.parse(told)).toMatchObject({
    agent: { running: true, ready: true },
    peers: [{ id: "b" }, { id: "c" }],
  });
  await rm(flagForAll);
});
