/**
 * When memory is given back: once after the start and after much has changed, and not while more comes.
 */
import { expect, test } from "bun:test";
import { Value } from "../src/async.ts";
import type { Mesh } from "../src/core/mesh.ts";
import { manyPeers, restMs, spareMemory } from "../src/spare-memory.ts";
import { FakeClock } from "./fakes/clock.ts";
import { nodeIdOf, peerOf } from "./fakes/wanted.ts";

const peers = Array.from({ length: manyPeers * 2 }, (_, at) => ({
  ...peerOf(1, { key: 100 + at, prefixes: [] }),
  nodeId: nodeIdOf(`n${10_000 + at}`),
}));

test.each([
  { name: "after many peers came, once", meshes: [manyPeers], restsMs: [restMs * 3], want: [1] },
  { name: "not for few", meshes: [manyPeers - 1], restsMs: [restMs * 3], want: [0] },
  {
    name: "after few that came again and again",
    meshes: [600, 0],
    restsMs: [restMs * 3, restMs * 3],
    want: [0, 1],
  },
  {
    name: "not while more comes",
    meshes: [manyPeers, 1_500, 2_000],
    restsMs: [restMs - 1, restMs - 1, restMs * 2],
    want: [0, 0, 1],
  },
  { name: "again after as much again", meshes: [manyPeers, 0], restsMs: [restMs, restMs], want: [1, 2] },
])("spareMemory() gives memory back after the start, and $name", async ({ meshes, restsMs, want }) => {
  const clock = new FakeClock();
  const state = new Value<{ readonly mesh: Mesh }>({ mesh: { peers: [] } });
  const stop = new AbortController();
  let collected = 0;
  const running = spareMemory({ state, clock, collect: () => void collected++ }, stop.signal);
  await clock.advance(restMs - 1);
  expect(collected).toBe(0);
  // A mesh that is built anew and as empty is no change.
  state.set({ mesh: { peers: [] } });
  await clock.advance(1);
  expect(collected).toBe(1);
  for (const [at, count] of meshes.entries()) {
    state.set({ mesh: { peers: peers.slice(0, count) } });
    await clock.advance(restsMs[at] ?? 0);
    expect(collected).toBe(1 + (want[at] ?? 0));
  }
  stop.abort();
  await running;
});
