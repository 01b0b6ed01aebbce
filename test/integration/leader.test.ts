/**
 * Which Curator an agent follows, through the compiled executable: the leader that any of them names, also when it
 * moves or is gone; Curators that the cluster named, after a restart; and what an agent does that is not wanted, or
 * that is there twice.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { node, type FakeLeader } from "../fakes/curator.ts";
import type { RemoteCurator } from "../fakes/remote-curator.ts";
import { Agent, podOf, scriptedCurator } from "../lab/agent.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { finishPing, freshMachine, nothingLost, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { OwnCluster } from "../lab/own-cluster.ts";
import { LabTrust } from "../lab/trust.ts";
import { waitFor } from "../lab/wait.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** Status UNIMPLEMENTED: what a Curator that does not lead answers to Watch. */
const notLeading = { code: 12, message: "unknown service" };

type Member = RemoteCurator & { readonly machine: Machine; readonly id: string };

/** Curators of which one leads, each on a machine of its own. */
class ControlPlane implements AsyncDisposable {
  readonly members: readonly Member[];

  private constructor(members: readonly Member[]) {
    this.members = members;
  }

  static async create(count: number): Promise<ControlPlane> {
    const members: Member[] = [];
    for (let number = 1; number <= count; number++) {
      const id = `member-${number}`;
      members.push(
        Object.assign(await scriptedCurator(lab, `m${number}-${crypto.randomUUID().slice(0, 4)}`), { id }),
      );
    }
    return new ControlPlane(members);
  }

  member(at: number): Member {
    return this.members[at] ?? expect.unreachable();
  }

  /** The cluster's picture is this from now on, at every member. */
  async put(bytes: Uint8Array): Promise<void> {
    for (const each of this.members) await each.call.put(bytes);
  }

  /** Number `at` leads from now on; the others end their streams, and all of them but those in `silent` say so. */
  async lead(at: number, silent: readonly number[] = []): Promise<void> {
    const { id, machine } = this.member(at);
    await this.member(at).call.refuseWatches();
    for (const [each, member] of this.members.entries()) {
      if (silent.includes(each)) continue;
      const leader: FakeLeader = { nodeId: id, host: machine.address, port: 7835, thisNodeId: member.id };
      await member.call.leader(leader);
      if (each === at) continue;
      await member.call.refuseWatches(notLeading);
      await member.call.endStreams();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.members.map((each) => each[Symbol.asyncDispose]()));
  }
}

async function agentOf(
  curators: readonly string[],
  change: { readonly directory?: string; readonly flags?: readonly string[] } = {},
): Promise<Agent> {
  const { directory = await lab.directory(), flags = [] } = change;
  return await Agent.start(await freshMachine(lab, "a"), {
    curator: curators,
    directory,
    nodeId: "a",
    pod: podOf(1).slice(0, 1),
    flags,
  });
}

/** Waits until the agent has a full picture of this Curator. */
async function follows(agent: Agent, { address }: RemoteCurator, limitMs = soonMs): Promise<void> {
  await agent.status(({ curator }) => curator.address === address && curator.fullPicture, limitMs);
}

/** The Curators that the state file remembers. */
async function learnedIn(agent: Agent): Promise<readonly string[]> {
  const text = await readFile(join(agent.dataDirectory, "clusternet.state"), "utf8");
  return (
    JSON.parse(text) as { readonly learnedCurators: readonly { nodeId: string; address: string }[] }
  ).learnedCurators.map(({ nodeId, address }) => `${nodeId} at ${address}`);
}

describe("the leader", () => {
  test.concurrent("is found through a Curator that does not lead, followed when it moves, and what it says is applied", async () => {
    await using plane = await ControlPlane.create(2);
    const [first, second] = [plane.member(0), plane.member(1)];
    await plane.lead(1);
    await plane.put(node({ id: "a", address: "192.0.2.250" }));
    // The agent knows only the one that does not lead.
    const agent = await agentOf([first.address]);
    try {
      await follows(agent, second);
      const b = paperNode("b", "198.51.100.2", ["10.192.2.0/24"]);
      await second.call.put(b.bytes);
      await agent.peers((peers) => peers.length === 1, soonMs);
      expect((await second.call.seen()).announcements.map(({ nodeId }) => nodeId)).toContain("a");

      await plane.put(b.bytes);
      await plane.lead(0);
      await follows(agent, first);
      const c = paperNode("c", "198.51.100.3", ["10.192.3.0/24"]);
      await plane.put(c.bytes);
      await agent.peers((peers) => peers.length === 2, soonMs);
      const { problems } = await agent.status((status) => status.problems.length === 0, soonMs);
      expect(problems).toEqual([]);
    } finally {
      await agent.kill();
    }
  }, 60_000);

  test.concurrent("must prove to be the node that was named, and is taken when it does", async () => {
    const trust = await LabTrust.create(lab);
    const directory = await lab.directory();
    const credentials = (id: string) => trust.issue(id, join(directory, id));
    await using asked = await scriptedCurator(lab, "tls-asked", await credentials("asked"));
    await using leader = await scriptedCurator(lab, "tls-leader", await credentials("leader"));
    const named = (nodeId: string): FakeLeader => ({
      nodeId,
      host: leader.machine.address,
      port: 7835,
      thisNodeId: "asked",
    });
    await asked.call.refuseWatches(notLeading);
    // A node of the cluster answers there, and another one than was named.
    await asked.call.leader(named("another"));
    await leader.call.put(node({ id: "a" }));
    const agent = await Agent.start(await freshMachine(lab, "a"), {
      curator: asked.address,
      directory,
      nodeId: "a",
      trust,
      pod: podOf(1).slice(0, 1),
    });
    try {
      const refused = await agent.status(
        ({ problems }) => problems.some(({ kind }) => kind === "curator-untrusted"),
        2 * soonMs,
      );
      expect(refused.problems.find(({ kind }) => kind === "curator-untrusted")?.message).toMatch(
        /^Cannot trust Curator .*"leader".*"another"/,
      );
      expect((await leader.call.seen()).streams).toEqual([]);
      await asked.call.leader(named("leader"));
      await follows(agent, leader, 15_000 + soonMs);
      await agent.status(({ problems }) => problems.length === 0, soonMs);
    } finally {
      await agent.kill();
    }
  }, 90_000);
});

describe("Curators that the cluster names", () => {
  test.concurrent("are found by an agent whose own list is out of date, and only those of consensus members", async () => {
    await using plane = await ControlPlane.create(2);
    const [first, second] = [plane.member(0), plane.member(1)];
    await plane.lead(0);
    await plane.put(node({ id: "a" }));
    const directory = await lab.directory();
    const before = await agentOf([first.address], { directory });
    const member = { consensusMember: true, curatorPort: 7835 };
    await plane.put(node({ id: second.id, address: second.machine.address, ...member }));
    await plane.put(node({ id: "liar", address: "198.51.100.66", curatorPort: 7835 }));
    await plane.put(node({ id: "inside", address: "10.192.7.7", ...member }));
    await waitFor(async () => (await learnedIn(before)).length > 0, {
      limitMs: soonMs,
      what: "learned Curators",
    });
    expect(await learnedIn(before)).toEqual([`${second.id} at ${second.address}`]);
    await before.kill();

    // The node's image names a Curator that is no more.
    await first.call.pause();
    await plane.lead(1, [0]);
    const gone = `${first.machine.address}:7836`;
    const agent = await Agent.start(before.machine, {
      curator: gone,
      directory,
      nodeId: "a",
      pod: podOf(1).slice(0, 1),
    });
    try {
      await follows(agent, second, 15_000 + soonMs);
      // What is no address to dial in the file is left out; the rest is used.
      await agent.kill();
      const path = join(agent.dataDirectory, "clusternet.state");
      const text = await readFile(path, "utf8");
      const spoiled = ["10.192.1.1:7835", "nonsense", second.address].map((address) => ({
        nodeId: second.id,
        address,
      }));
      await writeFile(path, JSON.stringify({ ...JSON.parse(text), learnedCurators: spoiled }));
      const again = await agent.restart();
      await follows(again, second, 15_000 + soonMs);
      await again.kill();
    } finally {
      await agent.kill();
    }
  }, 90_000);
});

describe("an agent", () => {
  test.concurrent("whose node was removed keeps its mesh, says what helps, and is in the mesh again when it is let in", async () => {
    // It asks again within a minute, which is three seconds here.
    await using cluster = await OwnCluster.create(lab, { clockSpeed: 20 });
    const { curator, a, b } = cluster;
    await a.status(({ peers }) => peers.length === 1, 2 * soonMs);
    await b.status(({ peers }) => peers.length === 1, 2 * soonMs);
    await b.machine.reach("10.192.1.1", { limitMs: soonMs });
    await curator.node("remove", "b");
    const removed = await b.status(
      ({ problems }) => problems.some(({ message }) => message.includes("NOT_FOUND")),
      2 * soonMs,
    );
    expect(removed.problems.map(({ kind, nodeId, message }) => [kind, nodeId, message])).toEqual([
      [
        "announce-refused",
        "b",
        'This node was removed from the cluster: the Curator knows no node "b" (NOT_FOUND). The mesh stays as it was; ' +
          "`clusternet node allow b` on the Curator's machine, with --data-dir where the Curator has one, lets this node in again",
      ],
    ]);
    expect(removed.node).toMatchObject({ id: "b", announced: [], announcedAt: null, removed: true });
    expect(removed.peers.map(({ id }) => id)).toEqual(["a"]);
    await a.status(({ peers }) => peers.length === 0, soonMs);

    await curator.node("allow", "b");
    await a.status(({ peers }) => peers.length === 1, 3_000 + 2 * soonMs);
    const again = await b.status(({ problems }) => problems.length === 0, 2 * soonMs);
    expect([again.node.removed, again.node.announced?.length]).toEqual([false, 2]);
    // From the side that has forgotten the session: the other one finds that out only after 15 s.
    await a.machine.reach("10.192.2.1", { limitMs: soonMs });
  }, 180_000);

  test.concurrent("that is there twice gives up the exchange and says so, on both machines, while other peers work", async () => {
    await using stage = await Stage.create(lab);
    const peer = await stage.peer("b", 2);
    const ping = stage.agent.machine.ping(peer.target);
    // A cloned image: the same identity, another machine and another key.
    const clone = await Agent.start(await freshMachine(lab, "clone"), {
      curator: stage.curator.address,
      directory: await lab.directory(),
      nodeId: "a",
      pod: podOf(1).slice(0, 1),
    });
    try {
      for (const agent of [stage.agent, clone]) {
        const { problems } = await agent.status(
          (status) => status.problems.some(({ kind }) => kind === "announce-contested"),
          30_000 + soonMs,
        );
        expect(problems.map(({ kind, nodeId }) => `${kind} ${nodeId}`)).toContain("announce-contested a");
      }
      expect(await finishPing(ping)).toEqual(nothingLost);
      const count = async (): Promise<number> =>
        (await stage.curator.call.seen()).announcements.filter(({ nodeId }) => nodeId === "a").length;
      const after = await count();
      // Each reversed three times, and begins again after ten minutes only.
      expect(after).toBeLessThanOrEqual(2 + 2 * 3);
      await stage.resyncs(2);
      expect(await count()).toBe(after);
    } finally {
      await clone.kill();
    }
  }, 120_000);
});
