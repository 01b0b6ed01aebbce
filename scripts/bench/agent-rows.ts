/**
 * The rows that measure an agent: what a change, a whole picture, a restart and a quiet minute cost it.
 *
 * The two sides take turns on the same interface or on two alike, with the same wrapper around `wg`. The first round
 * of each fills caches and does not count.
 */
import { join } from "node:path";
import { restMs } from "../../src/spare-memory.ts";
import { monotonicMs } from "../../test/lab/monotonic.ts";
import { memoryOf, processorMsOf } from "../../test/lab/usage.ts";
import { waitFor } from "../../test/lab/wait.ts";
import {
  copyOf,
  Floor,
  inStep,
  limitMs,
  meshFile,
  OwnStage,
  ScriptedStage,
  type StampedAgent,
} from "./agent-stage.ts";
import { encodePaperNode, type PaperNode } from "./nodes.ts";
import type { Row, Samples, Sizes } from "./row.ts";
import { summarize } from "./statistics.ts";
import type { WatchersReport } from "./watchers.ts";

/** The agent rests twice as long as its turn took, and 100 ms at least: what it is given sooner waits. */
const rest = (turnMs: number): Promise<void> => Bun.sleep(500 + 3 * turnMs);

/** `wg set` with the prefixes of these nodes at that turn. */
function setCommand(nodes: readonly PaperNode[], turn: number): readonly string[] {
  const words = nodes.flatMap((each) => ["peer", each.key, "allowed-ips", each.prefixes(turn).join(",")]);
  return ["wg", "set", "clusternet", ...words];
}

/** So many nodes change, all at once: the sending of the first event to the end of the `wg` that set the last. */
async function measureChanges(nodes: number, changes: number, samples: number): Promise<Samples> {
  await using stage = await ScriptedStage.create(nodes);
  const { stamps, machine, agent } = stage;
  // The floor has nodes of its own: what it sets is no drift of what the agent sets.
  const [mine, floors] = [stage.nodes.slice(0, changes), stage.nodes.slice(-changes)];
  await using floor = await Floor.start(machine, {
    content: await copyOf(meshFile(agent), join(agent.dataDirectory, "floor.conf")),
    path: stamps.path,
    rounds: [[setCommand(floors, 1)], [setCommand(floors, 0)]],
  });
  const ours: number[] = [];
  const baseline: number[] = [];
  let commands = 0;
  for (let round = 0; round <= samples; round++) {
    const from = stamps.changes;
    const sentAtMs = await stage.curator.call.put(...mine.map((each) => encodePaperNode(each, round + 1)));
    const heldAtMs = await stamps.changed(from, changes);
    if (round > 0) ours.push(heldAtMs - sentAtMs);
    await rest(heldAtMs - sentAtMs);
    commands = stamps.changesSince(from).length;

    const before = stamps.changes;
    const begunAtMs = await floor.begin();
    const setAtMs = await stamps.changed(before, changes);
    if (round > 0) baseline.push(setAtMs - begunAtMs);
    await floor.done();
  }
  return { ours, baseline, notes: changes === 1 ? [] : [`the agent used ${commands} wg set`] };
}

/** The same events to a client that counts them: what of it all is gRPC's, here and at the Curator. */
async function measureWire(nodes: number, changes: number, samples: number): Promise<Samples> {
  await using stage = await ScriptedStage.create(nodes);
  const { stamps, machine, agent, curator } = stage;
  await agent.kill();
  const changing = stage.nodes.slice(0, changes);
  await using floor = await Floor.start(machine, {
    content: await copyOf(meshFile(agent), join(agent.dataDirectory, "floor.conf")),
    path: stamps.path,
    rounds: [[setCommand(changing, 1)], [setCommand(changing, 0)]],
  });
  const program = join(import.meta.dir, "watchers.ts");
  const client = machine.spawn([process.execPath, program, curator.address, "0"], { listens: true });
  await client.say(`open 1 ${changes}`);
  await client.waitForLine(/"kind":"backlog"/, { limitMs });
  const ours: number[] = [];
  const baseline: number[] = [];
  for (let round = 0; round <= samples; round++) {
    const mark = client.mark();
    const sentAtMs = await curator.call.put(...changing.map((each) => encodePaperNode(each, round + 1)));
    const { text } = await client.waitForLine(/"kind":"change"/, { limitMs, from: mark });
    const { lastAtMs } = JSON.parse(text) as Extract<WatchersReport, { kind: "change" }>;
    if (round > 0) ours.push(lastAtMs - sentAtMs);
    await rest(0);

    const before = stamps.changes;
    const begunAtMs = await floor.begin();
    const setAtMs = await stamps.changed(before, changes);
    if (round > 0) baseline.push(setAtMs - begunAtMs);
    await floor.done();
  }
  return { ours, baseline };
}

/** A stream is opened by an agent without interface: to the end of the `wg` that brought the last peers. */
async function measurePicture({ nodes, samples }: Sizes): Promise<Samples> {
  await using stage = await OwnStage.create(nodes);
  const ours: number[] = [];
  const baseline: number[] = [];
  let calls: readonly string[] = [];
  for (let round = 0; round <= samples; round++) {
    const { curator } = stage;
    const mark = curator.process.mark();
    const { agent, machine, stamps } = await stage.spawnAgent();
    await agent.process.waitForLine(inStep, { limitMs });
    const opened = await curator.process.waitForLine(/Watch stream opened/, { limitMs, from: mark });
    const sets = stamps.changesSince(0);
    const last = sets.at(-1);
    if (last === undefined) throw new Error("the agent has set no peer");
    // What this process read has its own clock.
    if (round > 0) ours.push(last.atMs - (opened.atMs + monotonicMs() - performance.now()));
    calls = sets.map(({ verb }) => verb);
    await agent.kill();
    const file = await copyOf(meshFile(agent), join(agent.dataDirectory, "floor.conf"));
    // This ends its wireguard-go as well, in its own time.
    await machine.ip("link delete clusternet");
    await machine.exec(["wireguard-go", "floor"]);
    await waitFor(async () => (await machine.run(["wg", "show", "floor"])).code === 0, "a wireguard-go");
    await using floor = await Floor.start(machine, {
      content: file,
      path: stamps.path,
      rounds: [[["wg", "setconf", "floor", file]]],
    });
    const before = stamps.changes;
    const begunAtMs = await floor.begin();
    const setAtMs = await stamps.nextChange(before);
    if (round > 0) baseline.push(setAtMs - begunAtMs);
    await floor.done();
    await machine.ip("link delete floor");
  }
  return { ours, baseline, notes: [`changing calls of wg by the agent: ${count(calls)}`] };
}

/** An agent is started again on its interface, nothing having changed: from its start to the believed picture. */
async function measureRestart({ nodes, samples }: Sizes): Promise<Samples> {
  await using stage = await OwnStage.create(nodes);
  const { machine, stamps, again, ...started } = await stage.spawnAgent();
  let { agent } = started;
  await agent.process.waitForLine(inStep, { limitMs });
  const ours: number[] = [];
  const baseline: number[] = [];
  const from = stamps.changes;
  for (let round = 0; round <= samples; round++) {
    await agent.process.stop();
    const begunMs = performance.now();
    agent = again();
    const line = await agent.process.waitForLine(inStep, { limitMs });
    if (round > 0) ours.push(line.atMs - begunMs);
    const dumpMs = await timeDump({ agent, machine, stamps });
    if (round > 0) baseline.push(dumpMs);
  }
  await agent.kill();
  const changes = stamps.changesSince(from);
  return {
    ours,
    baseline,
    notes: [`changing calls of wg by the agent: ${count(changes.map(({ verb }) => verb))}`],
  };
}

/** One `wg show dump` whose output nobody reads. */
async function timeDump({ machine, stamps }: StampedAgent): Promise<number> {
  const begunMs = performance.now();
  const script = "wg show clusternet dump >/dev/null";
  await machine.exec(["sh", "-c", script], { path: stamps.path });
  return performance.now() - begunMs;
}

/** So long after the start its garbage is collected, which is no part of a quiet minute. */
const collectedMs = 20_000;
/** Each takes its minute, which no sum of shorter times stands for: what is rare, as a collection, would count as often. */
const mostQuietMinutes = 3;

/** As by default; the lab's agents compare more often. */
const quietResync = ["--resync", "30"];

/** What a minute with two comparisons costs the agent and its children. */
async function measureQuiet({ nodes, samples }: Sizes): Promise<Samples> {
  await using stage = await OwnStage.create(nodes);
  // As the baseline, without the wrapper: it is a shell more for each comparison.
  const quiet = await stage.spawnAgent(quietResync, { stamped: false });
  const { pid } = quiet.agent.process;
  await quiet.agent.process.waitForLine(inStep, { limitMs });
  await Bun.sleep(collectedMs);
  const ours: number[] = [];
  const own: number[] = [];
  const baseline: number[] = [];
  for (let round = 0; round < Math.min(samples, mostQuietMinutes); round++) {
    const before = [processorMsOf(pid), processorMsOf(pid, "own")] as const;
    await Bun.sleep(60_000);
    ours.push(processorMsOf(pid) - before[0]);
    own.push(processorMsOf(pid, "own") - before[1]);
    baseline.push(2 * dumpProcessorMs(quiet));
  }
  return {
    ours,
    baseline,
    notes: [`the agent itself ${summarize(own).median.toFixed(0)} ms of it, the rest wg and ip`],
  };
}

/** Processor time of one `wg show dump` without the wrapper. */
function dumpProcessorMs({ machine }: StampedAgent): number {
  const enter = ["nsenter", "-t", String(machine.namespace.pid), "-n", "-m", "--"];
  const run = Bun.spawnSync([...enter, "wg", "show", "clusternet", "dump"], {
    stdout: "ignore",
    stderr: "inherit",
  });
  if (run.exitCode !== 0) throw new Error(`"wg show clusternet dump" ended with status ${run.exitCode}`);
  const { user, system } = run.resourceUsage.cpuTime;
  return Number(user + system) / 1_000;
}

/** Memory is read this long after the mesh is applied: idle is when the agent has given back what the start has left. */
const settleMs = 2 * restMs + 1_000;
/** So long after a hint of the kernel a comparison of 10,000 peers has ended, also on a busy machine. */
const comparedMs = 3_000;

/** Resident memory of an idle agent with that many peers, and of a Bun that does nothing. */
async function measureMemory(nodes: number, samples: number): Promise<Samples> {
  await using stage = await OwnStage.create(nodes);
  const ours: Memory[] = [];
  const compared: Memory[] = [];
  const baseline: Memory[] = [];
  for (let round = 0; round < samples; round++) {
    const { agent, machine } = await stage.spawnAgent();
    await agent.process.waitForLine(inStep, { limitMs });
    const idle = Bun.spawn([process.execPath, "-e", "setInterval(() => {}, 1 << 30)"], { stdin: "ignore" });
    try {
      await Bun.sleep(settleMs);
      ours.push(residentMemory(agent.process.pid));
      baseline.push(residentMemory(idle.pid));
      // A hint of the kernel, for which the agent compares the host with what it wants.
      await machine.ip("link set clusternet txqueuelen 999");
      await Bun.sleep(comparedMs);
      compared.push(residentMemory(agent.process.pid));
    } finally {
      idle.kill("SIGKILL");
      await idle.exited;
    }
    await agent.kill();
    await machine.ip("link delete clusternet");
  }
  const medianOf = (side: readonly Memory[], kind: keyof Memory): string =>
    summarize(side.map((memory) => memory[kind])).median.toFixed(0);
  return {
    ours: ours.map(({ all }) => all),
    baseline: baseline.map(({ all }) => all),
    notes: [
      `its own (RssAnon) ${medianOf(ours, "anonymous")} MB beside ${medianOf(baseline, "anonymous")} MB`,
      `pages of the executable, shared and given up when memory is short (RssFile), ${medianOf(ours, "file")} MB beside ` +
        `${medianOf(baseline, "file")} MB`,
      `when the host has been compared once, all ${medianOf(compared, "all")} MB: its own ` +
        `${medianOf(compared, "anonymous")} MB and pages of the executable ${medianOf(compared, "file")} MB`,
    ],
  };
}

/** Resident memory of a process, in megabytes. */
interface Memory {
  readonly all: number;
  readonly anonymous: number;
  readonly file: number;
}

function residentMemory(pid: number): Memory {
  return {
    all: memoryOf(pid),
    anonymous: memoryOf(pid, "RssAnon"),
    file: memoryOf(pid, "RssFile"),
  };
}

function count(words: readonly string[]): string {
  if (words.length === 0) return "none";
  const counts = Object.entries(Object.groupBy(words, (word) => word));
  return counts.map(([word, all = []]) => `${all.length} ${word}`).join(", ");
}

/** Of a mesh of so many nodes, as a table says it. */
const at = (nodes: number): string => `at ${nodes.toLocaleString("en")} nodes`;

export function agentRows({ nodes }: Sizes): readonly Row[] {
  const small = Math.ceil(nodes / 10);
  const burst = Math.ceil(nodes / 10);
  const floor = "floor.ts: the file, one wg set";
  const idleBun = "bun -e that does nothing";
  return [
    ...[small, nodes].map((size): Row => ({
      name: "change",
      ours: `one node changes ${at(size)}`,
      baseline: floor,
      unit: "ms",
      aim: { kind: "ratio", most: 1.3 },
      measure: ({ samples }) => measureChanges(size, 1, samples),
    })),
    {
      name: "picture",
      ours: `full picture, new interface, ${at(nodes)}`,
      baseline: "floor.ts: the file, wg setconf",
      unit: "ms",
      aim: { kind: "ratio", most: 1.5 },
      measure: measurePicture,
    },
    {
      name: "restart",
      ours: `restart, nothing changed, ${at(nodes)}`,
      baseline: "one wg show dump",
      unit: "ms",
      aim: { kind: "ratio", most: 4 },
      measure: measureRestart,
    },
    {
      name: "burst",
      ours: `${burst.toLocaleString("en")} changes at once ${at(nodes)}`,
      baseline: floor,
      unit: "ms",
      aim: { kind: "ratio", most: 1.5 },
      measure: ({ samples }) => measureChanges(nodes, burst, samples),
    },
    {
      name: "burst",
      ours: "these events to a gRPC client that counts them",
      baseline: floor,
      unit: "ms",
      aim: { kind: "none" },
      measure: ({ samples }) => measureWire(nodes, burst, samples),
    },
    {
      name: "quiet",
      ours: `processor in a quiet minute ${at(nodes)}`,
      baseline: "processor of two wg show dump",
      unit: "ms",
      aim: { kind: "ratio", most: 3 },
      quiet: true,
      measure: measureQuiet,
    },
    ...[0, small, nodes].map((size): Row => ({
      name: "memory",
      ours: `memory ${at(size)}`,
      baseline: idleBun,
      unit: "MB",
      aim: size === nodes ? { kind: "above", most: 60 } : { kind: "none" },
      quiet: true,
      measure: ({ samples }) => measureMemory(size, samples),
    })),
  ];
}
