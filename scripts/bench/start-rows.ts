/**
 * The rows that measure starting: how soon a node is announced, and what a restart costs the traffic of its pods.
 */
import { Agent, executable, podOf, scriptedCurator } from "../../test/lab/agent.ts";
import { Lab } from "../../test/lab/lab.ts";
import { OwnCluster } from "../../test/lab/own-cluster.ts";
import type { PingResult } from "../../test/lab/ping.ts";
import { waitFor } from "../../test/lab/wait.ts";
import { inStep, limitMs } from "./agent-stage.ts";
import type { Row, Samples } from "./row.ts";
import { timeRun } from "./stamps.ts";

/**
 * From the start of the executable, on a machine where it has run before, to the announcement at the Curator: a
 * scripted one, which knows when that came. Beside it a Bun that ends at once.
 */
async function measureAnnouncement(samples: number): Promise<Samples> {
  await using lab = await Lab.create();
  await using curator = await scriptedCurator(lab);
  const machine = await lab.machine("a");
  const directory = await lab.directory();
  const ours: number[] = [];
  const baseline: number[] = [];
  for (let round = 0; round <= samples; round++) {
    const begunAt = Date.now();
    const agent = Agent.spawn(machine, {
      curator: curator.address,
      directory,
      pod: podOf(1),
      flags: ["--log-level", "info"],
    });
    const announced = await waitFor(async () => (await curator.call.seen()).announcements[round]?.at, {
      limitMs,
      what: "an announcement",
      everyMs: 100,
      detail: () => agent.process.describe(),
    });
    if (round > 0) ours.push(announced - begunAt);
    await agent.process.waitForLine(inStep, { limitMs });
    await agent.process.stop();
    const begunMs = performance.now();
    await machine.exec([process.execPath, "-e", "0"]);
    if (round > 0) baseline.push(performance.now() - begunMs);
  }
  return { ours, baseline };
}

/** Nothing but the start: the executable prints its version, beside a Bun that ends at once. */
function measureVersion(samples: number): Samples {
  const pairs = Array.from({ length: samples + 1 }, () => [
    timeRun([executable, "--version"]),
    timeRun([process.execPath, "-e", "0"]),
  ]).slice(1);
  return { ours: pairs.map(([ours = 0]) => ours), baseline: pairs.map(([, baseline = 0]) => baseline) };
}

/** Lost replies of a ping of 200 a second between two pods, once while an agent is started anew and once while it runs. */
async function measureLoss(samples: number): Promise<Samples> {
  await using lab = await Lab.create();
  await using cluster = await OwnCluster.create(lab);
  let { a } = cluster;
  // What the agent of "b" puts on its machine's loopback.
  const target = "10.192.2.1";
  await a.machine.reach(target, { limitMs: 20_000 });
  const ours: number[] = [];
  const baseline: number[] = [];
  let sent = 0;
  const pingWhile = async (action: () => Promise<void>): Promise<PingResult> => {
    const ping = a.machine.ping(target);
    await ping.sent(50, limitMs);
    await action();
    await ping.sent(200, limitMs);
    const result = await ping.stop();
    sent += result.sent;
    return result;
  };
  try {
    for (let round = 0; round < samples; round++) {
      const restarted = await pingWhile(async () => {
        await a.process.stop();
        a = await a.restart();
        await a.process.waitForLine(inStep, { limitMs });
      });
      ours.push(restarted.lost);
      const undisturbed = await pingWhile(async () => {});
      baseline.push(undisturbed.lost);
    }
  } finally {
    await a.kill();
  }
  return { ours, baseline, notes: [`${sent} pings in all; a reply later than 500 ms is lost`] };
}

export function startRows(): readonly Row[] {
  return [
    {
      name: "start",
      ours: "clusternet --version",
      baseline: "bun -e 0",
      unit: "ms",
      aim: { kind: "none" },
      // More of them, since they cost nothing.
      measure: async ({ samples }) => measureVersion(samples * 3),
    },
    {
      name: "start",
      ours: "start to the announcement sent",
      baseline: "bun -e 0",
      unit: "ms",
      aim: { kind: "plain", most: 150 },
      measure: ({ samples }) => measureAnnouncement(samples),
    },
    {
      name: "loss",
      ours: "replies lost by a restart",
      baseline: "no restart",
      unit: "replies",
      aim: { kind: "plain", most: 0 },
      measure: ({ samples }) => measureLoss(samples),
    },
  ];
}
