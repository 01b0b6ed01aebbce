/** What an agent says of itself while its parts are in this state or that, without any of them. */
import { expect, test } from "bun:test";
import { createAgent, type Agent } from "../src/agent.ts";
import { AgentStatus, type Told } from "../src/agent-status.ts";
import { Value } from "../src/async.ts";
import { planAnnouncement } from "../src/core/announcement.ts";
import type { SeenHost, SeenInterface } from "../src/core/host-state.ts";
import type { NodeId } from "../src/core/node.ts";
import type { Problem } from "../src/core/problem.ts";
import { removedProblem } from "../src/curator/connection.ts";
import { initialPullState, type PullState } from "../src/pull.ts";
import { FakeClock } from "./fakes/clock.ts";
import { FakeFollower } from "./fakes/follower.ts";
import { privateKeyOf, wantedHost } from "./fakes/wanted.ts";

interface Parts {
  readonly state?: Partial<PullState>;
  readonly problems?: readonly Problem[];
  /** Seconds since these loops turned; 0 for the others. */
  readonly restedSeconds?: { readonly [Loop in "pull" | "push" | "underlay" | "housekeeping"]?: number };
  readonly read?: () => Promise<SeenHost>;
}

const link: SeenInterface = {
  index: 7,
  name: "clusternet",
  implementation: "kernel",
  group: 9,
  mtu: 1420,
  up: true,
  listenPort: 7838,
  fwmark: 0,
  peers: new Map(),
};
const hostWith = (mtu: number): SeenHost => ({
  interface: { ...link, mtu },
  routes: [],
  loopback: [],
  addresses: new Set(),
});
const forever = (): Promise<never> => new Promise(() => {});

function agentOf(clock: FakeClock): Agent {
  return createAgent({
    curator: new FakeFollower(),
    nodeId: "a",
    clusterNet: "10.192.0.0/11",
    dataDirectory: "/nonexistent",
    localKubernetesPodNetwork: new Value(undefined),
    network: "auto",
    clock,
  });
}

/** An agent an hour after its start. */
async function statusOf({ state, problems = [], restedSeconds = {}, read = forever }: Parts) {
  const clock = new FakeClock();
  const startedAt = clock.wallTime();
  await clock.advance(3_600_000);
  const agent = agentOf(clock);
  agent.problems.replace("test", problems);
  const { publicKey, clusterNets } = wantedHost();
  const turned = (loop: keyof typeof restedSeconds): { readonly lastTurnMs: number } => ({
    lastTurnMs: clock.nowMs() - (restedSeconds[loop] ?? 0) * 1_000,
  });
  const pullState = { ...initialPullState, ...state };
  const told: Told = {
    startedAt,
    key: privateKeyOf(1),
    host: { read },
    own: new Value({
      claim: planAnnouncement({ self: agent.self, publicKey, clusterNets, podPrefixes: [] }),
      mtu: 1420,
      problems: [],
    }),
    pull: { ...turned("pull"), state: new Value(pullState), mesh: pullState.mesh },
    push: { ...turned("push"), state: new Value({}) },
    underlay: turned("underlay"),
    housekeeping: turned("housekeeping"),
  };
  return { clock, agent, status: new AgentStatus(agent, () => told) };
}

const noMesh = "no mesh has been applied yet, neither that of the last file nor a full picture of a Curator";
const portInUse: Problem = { kind: "port-in-use", message: "Cannot listen on UDP port 7838" };
const fileUnwritable: Problem = { kind: "file-unwritable", message: "Cannot write the file" };
const writtenAt = new Date("2026-01-01T00:30:00Z");

test.each<{
  name: string;
  parts: Parts;
  want: { notReady?: readonly string[]; remarks?: readonly string[]; unhealthy?: readonly string[] };
}>([
  { name: "not ready before a mesh is applied", parts: {}, want: { notReady: [noMesh] } },
  {
    name: "not ready, with what is in the way of the whole interface",
    parts: { problems: [portInUse, fileUnwritable] },
    want: { notReady: [portInUse.message] },
  },
  {
    name: "not ready, with no reason that is none",
    parts: { problems: [fileUnwritable] },
    want: { notReady: [noMesh] },
  },
  {
    name: "ready once a mesh is applied, whatever else is reported",
    parts: { state: { applied: true, source: "curator" }, problems: [fileUnwritable] },
    want: {},
  },
  {
    name: "ready with the mesh of the last file, and how old that is",
    parts: { state: { applied: true, source: "file", sourceAt: writtenAt } },
    want: {
      remarks: [
        "the mesh is from the file, as of 2026-01-01T00:30:00.000Z (30 min ago): no full picture has come from a Curator since the start",
      ],
    },
  },
  {
    name: "healthy while every loop has turned within a minute",
    parts: {
      state: { applied: true },
      restedSeconds: { pull: 60, push: 60, underlay: 60, housekeeping: 60 },
    },
    want: {},
  },
  {
    name: "not healthy, with each loop that has not",
    parts: {
      state: { applied: true },
      restedSeconds: { pull: 61, push: 3_600, underlay: 75, housekeeping: 90 },
    },
    want: {
      unhealthy: [
        "the mesh was last looked at 61 s ago",
        "the announcement was last looked at 3600 s ago",
        "the underlay was last looked at 75 s ago",
        "the data directory was last looked at 90 s ago",
      ],
    },
  },
])("AgentStatus is $name", async ({ parts, want }) => {
  const { status } = await statusOf(parts);
  expect({
    notReady: status.notReady(),
    remarks: status.remarks(),
    unhealthy: status.unhealthy(),
  }).toEqual({ notReady: [], remarks: [], unhealthy: [], ...want });
});

test.each<{ name: string; problem: Problem; want: boolean }>([
  {
    name: "removed by a problem that says so, whatever its words",
    problem: { kind: "announce-refused", nodeId: "a" as NodeId, message: "gone", isRemoval: true },
    want: true,
  },
  {
    name: "no removed one by a refusal of another kind in the same words",
    problem: { ...removedProblem("a" as NodeId), isRemoval: false },
    want: false,
  },
])("AgentStatus shows this node as $name", async ({ problem, want }) => {
  const { status } = await statusOf({ problems: [problem], read: () => Promise.resolve(hostWith(1_420)) });
  expect((await status.status()).node.removed).toBe(want);
});

test("AgentStatus says of an agent that starts that it does", () => {
  const status = new AgentStatus(agentOf(new FakeClock()), () => undefined);
  const starts = ["the agent is starting"];
  expect([status.notReady(), status.remarks(), status.unhealthy()]).toEqual([starts, [], starts]);
});

test.each<{ name: string; read: () => Promise<SeenHost>; want: number }>([
  { name: "as it is now", read: () => Promise.resolve(hostWith(1_400)), want: 1_400 },
  { name: "as it was last seen, when it takes longer than a second to be read", read: forever, want: 1_420 },
  {
    name: "as it was last seen, when it cannot be read",
    read: () => Promise.reject(new Error("wg is gone")),
    want: 1_420,
  },
])("AgentStatus tells of the host $name", async ({ read, want }) => {
  const { clock, status } = await statusOf({ state: { applied: true, seen: hostWith(1_420) }, read });
  const telling = status.status();
  await clock.advance(1_000);
  expect((await telling).interface).toMatchObject({ present: true, mtu: want });
});
