/**
 * The largest mesh that is promised (C7), through the compiled executable on real WireGuard: 10,000 nodes of 64 prefixes
 * at full size, less in every run. Prints what it took, for docs/scale.md.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { node } from "../fakes/curator.ts";
import { Lab } from "../lab/lab.ts";
import { long } from "../lab/long.ts";
import { soonMs, Stage } from "../lab/stage.ts";
import { memoryComesDownTo, memoryOf } from "../lab/usage.ts";

const count = long ? 10_000 : 200;
const prefixCount = 64;
/** What an agent may have of its own at rest: without nodes, just after its start, and for each prefix with its share of the node (390 were measured). */
const withoutNodesMb = 60;
const bytesOfPrefix = 450;
const limitMs = long ? 300_000 : 30_000;

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

const keys = Array.from({ length: count }, (_, number) => {
  const bytes = new Uint8Array(32).fill(5);
  new DataView(bytes.buffer).setUint32(0, number);
  return bytes.toBase64();
});

/** 63 prefixes of one address each in ClusterNet, and the node's own. */
function largeNode(number: number, generation = 0): Uint8Array {
  const address = `198.18.${number >> 8}.${number & 255}`;
  const pods = Array.from({ length: prefixCount - 1 }, (_, at) => {
    const value = number * prefixCount + at;
    return `10.${200 + (value >> 16)}.${(value >> 8) & 255}.${value & 255}/32`;
  });
  const all = [`${address}/32`, ...pods.slice(generation)];
  return node({ id: `node-${number}`, key: keys[number] ?? "", address, prefixes: all });
}

function seconds(from: number, to: number): string {
  return `${((to - from) / 1_000).toFixed(2)} s`;
}

function allowedOf(peer: readonly string[]): number {
  return peer[3]?.split(",").length ?? 0;
}

function isWhole(peers: readonly string[][]): boolean {
  return peers.length === count && peers.every((peer) => allowedOf(peer) === prefixCount);
}

test(
  `${count} nodes of ${prefixCount} prefixes are applied, leave the memory in bounds, survive a restart, and one of them changes by one command`,
  async () => {
    const begunMs = performance.now();
    const nodes = Array.from({ length: count }, (_, number) => largeNode(number));
    await using stage = await Stage.create(lab, {
      prepare: async (curator) => await curator.call.backlog(...nodes),
      flags: ["--resync", "60", "--log-level", "info"],
    });
    const startedMs = performance.now();
    await stage.agent.peers(isWhole, limitMs);
    const appliedMs = performance.now();
    await stage.agent.status(({ peers }) => peers.length === count, limitMs);
    const { pid } = stage.agent.process;
    const mostMb = memoryOf(pid, "VmHWM");
    const mostAtRestMb = withoutNodesMb + (count * prefixCount * bytesOfPrefix) / 1e6;
    const restMb = await memoryComesDownTo(pid, mostAtRestMb);

    await stage.recorder.clear();
    const mark = stage.agent.process.mark();
    const changedMs = performance.now();
    await stage.curator.call.put(largeNode(7, 1));
    await stage.agent.process.waitForLine(/Applied the mesh/, { limitMs: soonMs, from: mark });
    const doneMs = performance.now();
    const changes = await stage.recorder.changes();
    expect(changes.map((call) => call.slice(0, 5))).toEqual([
      ["wg", "set", "clusternet", "peer", keys[7] ?? ""],
    ]);

    await stage.recorder.clear();
    await stage.agent.kill();
    const againMs = performance.now();
    stage.agent = await stage.agent.restart();
    await stage.agent.process.waitForLine(/In step with the Curator/, { limitMs });
    const inStepMs = performance.now();
    expect(await stage.recorder.changes()).toEqual([]);
    console.log(
      `limits: ${count} nodes of ${prefixCount} prefixes: applied ${seconds(begunMs, appliedMs)} after the Curator was given them ` +
        `(${seconds(startedMs, appliedMs)} after the agent answered), one change ${seconds(changedMs, doneMs)}, ` +
        `restart ${seconds(againMs, inStepMs)}; memory of its own ${restMb.toFixed(0)} MB, of all kinds at most ${mostMb.toFixed(0)} MB until applied`,
    );
  },
  limitMs * 2,
);
