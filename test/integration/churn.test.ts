/**
 * What must not be felt in the mesh: agents and Curators that crash, stop, fall silent or come back, and hundreds of
 * nodes that come and go. Through the compiled executable on real WireGuard, with a ping that counts every reply.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { executable, scriptedCurator } from "../lab/agent.ts";
import { Cluster } from "../lab/cluster.ts";
import { Lab } from "../lab/lab.ts";
import { long } from "../lab/long.ts";
import { finishPing, nothingLost, paperNode, pings, soonMs, Stage } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

/** The answer of a Curator that is not the leader. */
const unimplemented = { code: 12, message: "not leader" };

/** A Curator that says nothing more is found within this time (C4.10). */
const silentMs = 20_000;

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** As many nodes that nobody runs, each with a /28 of its own. */
function crowdOf(count: number): readonly ReturnType<typeof paperNode>[] {
  return Array.from({ length: count }, (_, at) => {
    const network = `10.${200 + (at >> 12)}.${(at >> 4) & 255}.${(at & 15) << 4}/28`;
    return paperNode(`node-${at + 1}`, `198.18.${at >> 8}.${at & 255}`, [network]);
  });
}

describe("the agent", () => {
  test("an agent killed among 300 peers comes back unnoticed, and removes nobody before the picture is full (case 3)", async () => {
    const nodes = crowdOf(300);
    await using stage = await Stage.create(lab, {
      prepare: async (curator) => await curator.call.backlog(...nodes.map(({ bytes }) => bytes)),
    });
    // The last of the backlog, since it was added last.
    const c = await stage.peer("c", 2);
    await stage.agent.peers((peers) => peers.length === 301, soonMs);
    const index = await stage.interfaceIndex();
    await stage.recorder.clear();

    const ping = stage.agent.machine.ping(c.target, { rate: 100 });
    await ping.sent(20, soonMs);
    await stage.agent.kill();
    await stage.curator.call.forget("node-1");
    await stage.curator.call.forget("node-2");
    await stage.curator.call.style({ nodesPerEvent: 60, pauseMs: long ? 1_000 : 200, last: "hold" });
    stage.agent = await stage.agent.restart();
    await stage.streaming();
    // A live event: it comes after all that the backlog brings.
    const added = paperNode("added", "198.51.100.1", ["10.192.100.0/24"]);
    await stage.curator.call.put(added.bytes);
    await stage.agent.peers((peers) => peers.some(([key]) => key === added.key), soonMs);
    await stage.resyncs(1);
    expect((await stage.agent.peers(() => true, soonMs)).length).toBe(302);
    expect((await stage.recorder.changes()).filter((call) => call.includes("remove"))).toEqual([]);

    await stage.curator.call.releaseLast();
    await stage.agent.peers((peers) => peers.length === 300, soonMs);
    expect(await stage.interfaceIndex()).toBe(index);
    expect(await finishPing(ping)).toEqual(nothingLost);
  });

  test("agents that were stopped leave the mesh working and the announcement at the Curator (case 41)", async () => {
    await using cluster = await Cluster.create(lab);
    const [a, b, c] = await cluster.agents(["a", "b", "c"]);
    if (a === undefined || b === undefined || c === undefined) throw new Error("three agents expected");
    const [nodes, peers] = [await cluster.nodeList(), await allowedIps(c.agent)];
    expect(nodes.map(({ id }) => id)).toEqual(["a", "b", "c"]);

    for (const { agent } of [a, b]) {
      expect(await agent.process.stop()).toEqual({ code: 0, signal: undefined });
    }
    // A minute at full size.
    const sent = long ? 12_000 : pings;
    const [toB, toC] = [a.agent.machine.pod.ping("10.192.2.2"), a.agent.machine.pod.ping("fd10:c1:0:3::2")];
    expect(await finishPing(toB, sent)).toEqual(nothingLost);
    expect(await finishPing(toC, sent)).toEqual(nothingLost);
    expect(await cluster.nodeList()).toEqual(nodes);
    expect(await allowedIps(c.agent)).toEqual(peers);
  });

  test("a large mesh is shown within two seconds, changed by one command and compared without any (case 44)", async () => {
    const count = long ? 10_000 : 1_000;
    const nodes = crowdOf(count);
    await using stage = await Stage.create(lab, {
      prepare: async (curator) => await curator.call.backlog(...nodes.map(({ bytes }) => bytes)),
    });
    await stage.agent.peers((peers) => peers.length === count, 60_000);
    await stage.agent.status((status) => status.peers.length === count, soonMs);

    for (const flags of [[], ["--json"]]) {
      const startedAt = performance.now();
      const argv = [executable, "status", "--data-dir", stage.agent.dataDirectory, ...flags];
      const shown = await stage.agent.machine.exec(argv);
      expect(performance.now() - startedAt).toBeLessThan(2_000);
      const ids = new Set(shown.match(/\bnode-\d+\b/g));
      expect(ids).toEqual(new Set(nodes.map((_, at) => `node-${at + 1}`)));
    }

    await stage.recorder.clear();
    const key = nodes[6]?.key ?? "";
    const moved = paperNode("node-7", "198.18.0.6", ["10.192.100.0/24"], key);
    await stage.curator.call.put(moved.bytes);
    await stage.agent.peers((peers) => {
      const peer = peers.find(([each]) => each === key);
      return peer?.[3]?.split(",").toSorted().join() === "10.192.100.0/24,198.18.0.6/32";
    }, soonMs);
    const changes = await stage.recorder.changes();
    expect(changes.map((call) => call.slice(0, 5))).toEqual([["wg", "set", "clusternet", "peer", key]]);

    await stage.recorder.clear();
    await stage.resyncs(2);
    expect(await stage.recorder.changes()).toEqual([]);
  });
});

describe("the Curator", () => {
  test("a Curator reset over and over, then away, is felt by nobody (case 22)", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    const index = await stage.interfaceIndex();
    await stage.recorder.clear();
    const ping = stage.agent.machine.ping(b.target);
    for (let reset = 0; reset < (long ? 50 : 10); reset++) {
      if (reset % 2 === 0) {
        await stage.curator.call.endStreams();
      } else {
        await stage.curator.call.pause();
        await stage.curator.call.resume();
      }
      const { streams } = await stage.curator.call.seen();
      await waitFor(
        async () => {
          const { streams: now } = await stage.curator.call.seen();
          return now.length > streams.length && now.at(-1)?.open;
        },
        {
          limitMs: soonMs,
          what: `stream ${streams.length + 1}`,
          detail: () => stage.agent.process.describe(),
        },
      );
    }
    await stage.curator.call.pause();
    await stage.agent.status(({ curator }) => curator.state !== "connected", soonMs);
    await stage.problems((problems) => problems.includes("curator-unreachable -"), soonMs);
    expect(await finishPing(ping)).toEqual(nothingLost);
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await stage.interfaceIndex()).toBe(index);
  });

  test("a mesh emptied by hand takes the Curator's word as before, and is filled again (case 22)", async () => {
    await using stage = await Stage.create(lab);
    const nodes = crowdOf(20);
    for (const { bytes } of nodes) await stage.curator.call.put(bytes);
    await stage.holds(nodes.map(({ allowed }) => allowed));
    const { streams } = await stage.curator.call.seen();
    const removals = nodes.flatMap(({ key }) => ["peer", key, "remove"]);
    await stage.agent.machine.exec(["wg", "set", "clusternet", ...removals]);
    const added = paperNode("added", "198.51.100.1", ["10.192.100.0/24"]);
    await stage.curator.call.put(added.bytes);
    await stage.holds([...nodes.map(({ allowed }) => allowed), added.allowed]);
    expect((await stage.curator.call.seen()).streams).toEqual(streams);
  });

  test("a Curator that falls silent is found within 20 s and the second one used, until the first leads again (case 42)", async () => {
    // Both to their end, also when one fails: each cleans up after itself.
    const ends = await Promise.allSettled([silence("stopped"), silence("packets dropped")]);
    for (const end of ends) if (end.status === "rejected") throw end.reason;
  });

  test("a Curator that is not the leader is left for the next one (case 42)", async () => {
    await using leader = await scriptedCurator(lab, "leader");
    const b = paperNode("b", "198.51.100.2", ["10.192.2.0/24"]);
    await leader.call.put(b.bytes);
    await using stage = await Stage.create(lab, {
      curators: [leader.address],
      prepare: async (follower) => await follower.call.refuseWatches(unimplemented),
    });
    await stage.holds([b.allowed]);
    await waitFor(async () => (await leader.call.seen()).announcements.length === 1, {
      limitMs: soonMs,
      what: "the announcement at the leader",
    });
    expect((await stage.curator.call.seen()).announcements).toEqual([]);
  });

  test("a Curator that crashed and came back costs the agents a new stream and nothing else", async () => {
    await using cluster = await Cluster.create(lab);
    const members = await cluster.agents(["a", "b"]);
    const [a] = members;
    if (a === undefined) throw new Error("two agents expected");
    const nodes = await cluster.nodeList();
    const before = await Promise.all(members.map(({ agent }) => agent.status(() => true, soonMs)));
    for (const { recorder } of members) await recorder.clear();

    const ping = a.agent.machine.pod.ping("10.192.2.2");
    await cluster.killCurator();
    for (const { agent } of members) {
      await agent.status(({ curator }) => curator.state !== "connected", soonMs);
    }
    await cluster.startCurator();
    for (const { agent } of members) {
      await agent.status(
        ({ curator }) => curator.state === "connected" && curator.fullPicture,
        15_000 + soonMs,
      );
    }
    expect(await finishPing(ping)).toEqual(nothingLost);
    expect(await cluster.nodeList()).toEqual(nodes);
    // The time of the last announcement among it: nothing was announced again.
    const after = await Promise.all(members.map(({ agent }) => agent.status(() => true, soonMs)));
    expect(after.map(({ node }) => node)).toEqual(before.map(({ node }) => node));
    expect(await Promise.all(members.map(({ recorder }) => recorder.changes()))).toEqual([[], []]);
  });
});

test("two nodes that speak hear nothing of 200 others that come, change and go, nor of a killed agent", async () => {
  await using cluster = await Cluster.create(lab);
  const [a, b] = await cluster.agents(["a", "b"]);
  if (a === undefined || b === undefined) throw new Error("two agents expected");
  const crowd = (...steps: string[]) =>
    cluster.machine.exec(
      [
        process.execPath,
        join(import.meta.dir, "../lab/crowd.ts"),
        cluster.address,
        cluster.dataDirectory,
        "200",
        ...steps,
      ],
      { limitMs: 60_000 },
    );
  const ping = a.agent.machine.pod.ping("10.192.2.2");
  const ping6 = b.agent.machine.pod.ping("fd10:c1:0:1::2");
  await crowd("add");
  await a.agent.peers((peers) => peers.length === 201, soonMs);
  const added = await allowedIps(a.agent);
  await crowd("change");
  await a.agent.peers((peers) => peers.filter(([key]) => added.has(key ?? "")).length === 1, soonMs);

  await crowd("remove");
  await a.agent.peers((peers) => peers.length === 1, soonMs);

  await a.agent.kill();
  const again = await a.agent.restart();
  try {
    await again.status(({ agent, curator }) => agent.ready && curator.fullPicture, soonMs);
    const count = long ? 2_000 : pings;
    expect([await finishPing(ping, count), await finishPing(ping6, count)]).toEqual([
      nothingLost,
      nothingLost,
    ]);
  } finally {
    await again.kill();
  }
});

/** Allowed IPs by key, as the interface has them. */
async function allowedIps(agent: Stage["agent"]): Promise<ReadonlyMap<string, string>> {
  const peers = await agent.peers(() => true, soonMs);
  return new Map(peers.map((peer) => [peer[0] ?? "", peer[3] ?? ""]));
}

/** The first of two Curators says nothing more; later it is there again and the second one is no leader any more. */
async function silence(how: "stopped" | "packets dropped"): Promise<void> {
  await using second = await scriptedCurator(lab, how === "stopped" ? "second-1" : "second-2");
  await using stage = await Stage.create(lab, { curators: [second.address] });
  const first = stage.curator;
  await stage.streaming();
  const isAt = async (address: string, limitMs: number): Promise<void> => {
    await stage.agent.status(
      ({ curator }) => curator.state === "connected" && curator.address === address,
      limitMs,
    );
  };
  await isAt(first.address, soonMs);
  const added = paperNode("added", "198.51.100.1", ["10.192.100.0/24"]);
  await second.call.put(added.bytes);

  const cut = how === "stopped" ? undefined : await lab.isolate(first.machine);
  if (how === "stopped") process.kill(first.pid, "SIGSTOP");
  await stage.agent.status(({ curator }) => curator.state !== "connected", silentMs);
  // The first one is given one more chance, which takes as long as a connection may.
  await isAt(second.address, soonMs);
  await stage.holds([added.allowed]);

  await cut?.restore();
  if (how === "stopped") process.kill(first.pid, "SIGCONT");
  await second.call.refuseWatches(unimplemented);
  await second.call.endStreams(unimplemented);
  await isAt(first.address, 20_000);
}
