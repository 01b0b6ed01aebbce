/** What this node says of itself while a source of its pod prefixes has not answered yet, and after. */
import { expect, test } from "bun:test";
import { Value } from "../src/async.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import type { Problem } from "../src/core/problem.ts";
import {
  followOwn,
  lastPodPrefixes,
  podNetworkToRemember,
  readOwn,
  type NetworkStatus,
  type OwnSources,
  type SourceState,
} from "../src/own.ts";
import { Prefixes } from "../src/prefixes.ts";
import { keyOf, nodeId } from "./core/nodes.ts";
import { waitFor } from "./lab/wait.ts";

const settings = {
  self: nodeId("a"),
  publicKey: keyOf(1),
  clusterNets: [parsePrefix("10.192.0.0/11")],
};
const address = "192.0.2.1/32";
const failing: Problem = { kind: "source-failed", message: "nobody answers" };

function sourcesOf(given: {
  readonly now?: readonly string[];
  readonly last?: readonly string[];
  readonly state: SourceState;
}) {
  return {
    podNetwork: new Value<Prefixes | undefined>(
      given.now === undefined ? undefined : new Prefixes(given.now),
    ),
    podNetworkState: new Value(given.state),
    lastPodPrefixes: (given.last ?? []).map(parsePrefix),
    network: new Value<NetworkStatus | undefined>({ externalAddress: "192.0.2.1" }),
    mtu: new Value({ mtu: 1420, problems: [] }),
  } satisfies OwnSources;
}

const silent: SourceState = { answered: false, problems: [] };
const answered: SourceState = { answered: true, problems: [] };

test.each([
  { name: "nothing, when nothing was ever known", given: { state: silent }, want: [address] },
  {
    name: "what the run before knew, while the source is silent",
    given: { state: silent, last: ["10.192.1.0/24", "10.192.2.0/24"] },
    want: [address, "10.192.1.0/24", "10.192.2.0/24"],
  },
  {
    name: "what is fixed first, and what the run before knew, while the source is silent",
    given: {
      state: silent,
      now: ["10.192.9.0/24", "10.192.2.0/24"],
      last: ["10.192.1.0/24", "10.192.2.0/24"],
    },
    want: [address, "10.192.9.0/24", "10.192.2.0/24", "10.192.1.0/24"],
  },
  {
    name: "only what the source says, once it has answered",
    given: { state: answered, now: ["10.192.3.0/24"], last: ["10.192.1.0/24"] },
    want: [address, "10.192.3.0/24"],
  },
  {
    name: "no pod prefix when the source has none",
    given: { state: answered, now: [], last: ["10.192.1.0/24"] },
    want: [address],
  },
  {
    name: "what the source said last while it fails",
    given: { state: { answered: true, problems: [failing] }, now: ["10.192.3.0/24"] },
    want: [address, "10.192.3.0/24"],
    problems: [failing],
  },
])("readOwn() announces $name", ({ given, want, problems = [] }) => {
  const own = readOwn(settings, sourcesOf(given));
  expect(own.claim.announcement.prefixes.map(({ text }) => text)).toEqual([...want]);
  expect(own.problems).toEqual([...problems]);
});

const all = new Prefixes(["10.192.9.0/24", "10.192.1.0/24"]);
const given = [parsePrefix("10.192.1.0/24")];
test.each<{ name: string; before: SourceState; now: SourceState; want: readonly string[] }>([
  {
    name: "what the source alone has given",
    before: { ...answered, source: "Node a", given },
    now: { ...silent, source: "Node a", given: [] },
    want: ["10.192.1.0/24"],
  },
  {
    name: "all, when the source does not say what it has given",
    before: answered,
    now: silent,
    want: ["10.192.9.0/24", "10.192.1.0/24"],
  },
  {
    name: "nothing, when the source gives nothing",
    before: { ...answered, source: "Node a", given: [] },
    now: { ...silent, source: "Node a", given: [] },
    want: [],
  },
  {
    name: "nothing of another source",
    before: { ...answered, source: "Node a", given },
    now: { ...silent, source: "Node b", given: [] },
    want: [],
  },
  {
    name: "nothing of a source with a name for one without",
    before: { ...answered, source: "Node a", given },
    now: silent,
    want: [],
  },
])("a run goes on with $name", ({ before, now, want }) => {
  const remembered = podNetworkToRemember(all, before);
  expect(lastPodPrefixes(remembered, now).map(({ text }) => text)).toEqual([...want]);
  expect(lastPodPrefixes(undefined, now)).toEqual([]);
});

test("followOwn() follows prefixes and state of the source, and keeps quiet while they say the same", async () => {
  const sources = sourcesOf({ state: silent, last: ["10.192.1.0/24"] });
  const own = new Value(readOwn(settings, sources));
  const seen: string[] = [];
  const stop = new AbortController();
  const watching = (async () => {
    for await (const { claim, problems } of own.watch(stop.signal)) {
      seen.push(
        [
          ...claim.announcement.prefixes.slice(1).map(({ text }) => text),
          ...problems.map(({ kind }) => kind),
        ].join(),
      );
    }
  })();
  const following = followOwn(settings, sources, own, stop.signal);
  const until = (count: number): Promise<boolean> => waitFor(() => seen.length >= count, `${count} values`);
  await until(1);
  sources.podNetworkState.set({ answered: false, problems: [failing] });
  await until(2);
  sources.podNetwork.set(new Prefixes(["10.192.1.0/24"]));
  sources.podNetworkState.set({ answered: true, problems: [failing] });
  sources.podNetworkState.set({ answered: true, problems: [] });
  await until(3);
  sources.podNetwork.set(new Prefixes(["10.192.2.0/24"]));
  await until(4);
  stop.abort();
  await Promise.all([watching, following]);
  expect(seen).toEqual(["10.192.1.0/24", "10.192.1.0/24,source-failed", "10.192.1.0/24", "10.192.2.0/24"]);
});
