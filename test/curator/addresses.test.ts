/** The order in which Curators are tried, after what became of them before. */
import { expect, test } from "bun:test";
import { parsePrefix } from "../../src/core/prefix.ts";
import { CuratorAddresses, type AddressSettings } from "../../src/curator/addresses.ts";
import { FakeClock } from "../fakes/clock.ts";
import { nodeIdOf } from "../fakes/wanted.ts";

const given = ["a:1", "b:1", "c:1"];
const named = (address: string, name = `node-${address[0]}`) => ({ address, nodeId: nodeIdOf(name) });

type Act = (addresses: CuratorAddresses, clock: FakeClock) => void;

const served =
  (address: string, { isBadFirst = false, leader = "" } = {}): Act =>
  (addresses) =>
    addresses.noteServed({ address }, { isBadFirst, leader: leader === "" ? undefined : named(leader) });
const learned =
  (...curators: readonly string[]): Act =>
  (addresses) =>
    addresses.learn(curators.map((each) => named(each)));

test.each<{
  name: string;
  settings?: Partial<AddressSettings>;
  random?: number;
  acts: readonly Act[];
  want: string;
}>([
  { name: "those given by hand as they were given", acts: [], want: "a:1 b:1 c:1" },
  {
    name: "the last good one, and then those behind it",
    acts: [served("b:1")],
    want: "b:1 b:1 c:1 a:1",
  },
  {
    name: "the last good one last, when it went away as it should not",
    acts: [served("b:1", { isBadFirst: true })],
    want: "c:1 a:1 b:1",
  },
  {
    name: "the leader for which a stream was left, before all others",
    acts: [served("a:1"), served("b:1", { leader: "d:1" })],
    want: "d:1 a:1 a:1 b:1 c:1",
  },
  {
    name: "those that the cluster named last, from a place of this agent's own",
    random: 0.5,
    acts: [learned("d:1", "e:1", "f:1", "g:1")],
    want: "a:1 b:1 c:1 f:1 g:1 d:1 e:1",
  },
  {
    name: "of those that the cluster named only those that are allowed",
    settings: { curatorIds: ["node-e"] },
    random: 0,
    acts: [learned("d:1", "e:1")],
    want: "a:1 b:1 c:1 e:1",
  },
  {
    name: "of those that the cluster named none elsewhere, when only this machine is allowed",
    settings: { loopbackOnly: true },
    random: 0,
    acts: [learned("192.0.2.1:1", "127.0.0.2:1")],
    want: "a:1 b:1 c:1 127.0.0.2:1",
  },
  {
    name: "a last good one that was lost in its turn",
    acts: [served("d:1"), (addresses) => addresses.noteLost("d:1")],
    want: "a:1 b:1 c:1",
  },
])("CuratorAddresses gives $name", ({ settings = {}, random = 0, acts, want }) => {
  const clock = new FakeClock();
  clock.nextRandom = random;
  const addresses = new CuratorAddresses({ addresses: given, ...settings }, clock);
  for (const act of acts) act(addresses, clock);
  expect(
    addresses
      .nextRound()
      .map(({ address }) => address)
      .join(" "),
  ).toBe(want);
});

test("CuratorAddresses forgets after a minute that a leader could not be reached", async () => {
  const clock = new FakeClock();
  const addresses = new CuratorAddresses({ addresses: given }, clock);
  addresses.noteLost("d:1");
  const lost: boolean[] = [];
  for (const ms of [0, 59_999, 1]) {
    await clock.advance(ms);
    addresses.nextRound();
    lost.push(addresses.isLost("d:1"));
  }
  expect(lost).toEqual([true, true, false]);
});

test.each<{
  name: string;
  settings?: Partial<AddressSettings>;
  host?: string;
  want: ReturnType<CuratorAddresses["leaderOf"]>;
}>([
  {
    name: "at its address",
    want: named("192.0.2.9:7835", "node-d"),
  },
  {
    name: "nowhere, when it has told no address",
    host: "",
    want: 'it names leader "node-d" at "", which is no address to dial',
  },
  {
    name: "nowhere, when its address is inside ClusterNet",
    settings: { clusterNets: [parsePrefix("192.0.2.0/24")] },
    want: 'it names leader "node-d" at "192.0.2.9", which is no address to dial',
  },
  {
    name: "nowhere, when it is not among those allowed",
    settings: { curatorIds: ["node-e"] },
    want: 'it names leader "node-d" at 192.0.2.9:7835, which is not among those allowed',
  },
])("leaderOf() finds the leader $name", ({ settings = {}, host = "192.0.2.9", want }) => {
  const addresses = new CuratorAddresses({ addresses: given, ...settings }, new FakeClock());
  expect(
    addresses.leaderOf({
      leaderNodeId: "node-d",
      leaderHost: host,
      leaderPort: 7835,
      thisNodeId: "node-a",
    }),
  ).toEqual(want);
});
