/** What a running agent keeps for the next start, of a source and of Curators that change what they say. */
import { expect, test } from "bun:test";
import { Value } from "../src/async.ts";
import type { LearnedCurator } from "../src/core/curators.ts";
import { parsePrefix, type Prefix } from "../src/core/prefix.ts";
import { AgentMemory, emptyState } from "../src/host/state-file.ts";
import { silentLogger } from "../src/log.ts";
import { alwaysAnswered, type SourceState } from "../src/own.ts";
import { Prefixes } from "../src/prefixes.ts";
import { initialPullState } from "../src/pull.ts";
import { rememberCurators, rememberPodPrefixes } from "../src/remember.ts";
import { FakeFollower } from "./fakes/follower.ts";
import { nodeIdOf } from "./fakes/wanted.ts";
import { waitFor } from "./lab/wait.ts";

const before = { source: "node a", prefixes: [parsePrefix("10.192.9.0/24")] };

/** A memory without a file, of a disk that can be full. */
class CountedMemory extends AgentMemory {
  isFull = false;
  writes = 0;

  override async rememberPodNetwork(next: Parameters<AgentMemory["rememberPodNetwork"]>[0]): Promise<void> {
    await super.rememberPodNetwork(next);
    this.#count();
  }

  override async learn(next: Parameters<AgentMemory["learn"]>[0]): Promise<void> {
    await super.learn(next);
    this.#count();
  }

  #count(): void {
    this.writes++;
    if (this.isFull) throw new Error("no space left on device");
  }
}

const given = (...texts: readonly string[]): readonly Prefix[] => texts.map(parsePrefix);

test.each<{
  name: string;
  state: SourceState | undefined;
  later?: SourceState;
  isFull?: boolean;
  want: { remembered: string | undefined; writes: number; warnings: number };
}>([
  {
    name: "what the run before knew, of a source that has not answered",
    state: { answered: false, problems: [], source: "node a" },
    want: { remembered: "node a: 10.192.9.0/24", writes: 0, warnings: 0 },
  },
  {
    name: "what a source has given, once it has answered, and once",
    state: { answered: false, problems: [], source: "node a" },
    later: { answered: true, problems: [], source: "node a", given: given("10.192.2.0/24") },
    want: { remembered: "node a: 10.192.2.0/24", writes: 1, warnings: 0 },
  },
  {
    name: "all there is of a source that does not tell its own part",
    state: { answered: true, problems: [], source: "node b" },
    want: { remembered: "node b: 10.192.1.0/24", writes: 1, warnings: 0 },
  },
  {
    name: "nothing of a source that always knows",
    state: undefined,
    want: { remembered: undefined, writes: 1, warnings: 0 },
  },
  {
    name: "in this process what cannot be written, with a warning",
    state: { answered: true, problems: [], source: "node b" },
    isFull: true,
    want: { remembered: "node b: 10.192.1.0/24", writes: 1, warnings: 1 },
  },
])("rememberPodPrefixes() keeps $name", async ({ state, later, isFull = false, want }) => {
  const memory = new CountedMemory({ ...emptyState, podNetwork: before });
  memory.isFull = isFull;
  let warnings = 0;
  const podNetworkState = new Value<SourceState>(state ?? alwaysAnswered);
  const sources = {
    podNetwork: new Value<Prefixes | undefined>(new Prefixes(["10.192.1.0/24"])),
    podNetworkState,
    lastPodPrefixes: [],
    network: new Value(undefined),
    mtu: new Value({ mtu: 1420, problems: [] }),
  };
  const stop = new AbortController();
  const running = rememberPodPrefixes(
    {
      ...(state === undefined ? {} : { podNetworkState }),
      log: { ...silentLogger, warn: () => void warnings++ },
    },
    { sources, memory },
    stop.signal,
  );
  const outcome = (): object => {
    const { podNetwork } = memory.get();
    const remembered =
      podNetwork && `${podNetwork.source}: ${podNetwork.prefixes.map(({ text }) => text).join(" ")}`;
    return { remembered, writes: memory.writes, warnings };
  };
  try {
    if (later !== undefined) podNetworkState.set(later);
    await waitFor(() => Bun.deepEquals(outcome(), want), "the last to be kept");
    // Said again, it is not written again.
    podNetworkState.set({ ...podNetworkState.get() });
    await new Promise((resolve) => setImmediate(resolve));
    if (!isFull) expect(outcome()).toEqual(want);
  } finally {
    stop.abort();
    await running;
  }
});

test("rememberCurators() tries and keeps each list of Curators once, none when there are none, and goes on when it cannot", async () => {
  const memory = new CountedMemory(emptyState);
  const curator = new FakeFollower();
  const state = new Value(initialPullState);
  const stop = new AbortController();
  const running = rememberCurators({ curator, log: silentLogger }, { state, memory }, stop.signal);
  const tell = async (curators: readonly LearnedCurator[], count: number): Promise<void> => {
    state.set({ ...state.get(), curators });
    await waitFor(() => curator.learned.length === count, `${count} lists`);
  };
  const [one, other] = ["a", "b"].map((name, at) => ({
    nodeId: nodeIdOf(name),
    address: `192.0.2.${at + 1}:7835`,
  }));
  if (one === undefined || other === undefined) throw new Error("two Curators were made");
  try {
    const first = [one];
    memory.isFull = true;
    await tell(first, 1);
    memory.isFull = false;
    await tell(first, 1);
    await tell([one, other], 2);
    await tell([], 2);
    expect({ learned: curator.learned, writes: memory.writes, kept: memory.get().learnedCurators }).toEqual({
      learned: [[one], [one, other]],
      writes: 2,
      kept: [one, other],
    });
  } finally {
    stop.abort();
    await running;
  }
});
