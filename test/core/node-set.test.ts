/** The node set: what is known after which events, and when absence may remove. */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import {
  foldBelieved,
  foldEvent,
  foldStreamOpened,
  holdMs,
  initialNodeSet,
  knownNodes,
  selfNode,
  type NodeEvent,
  type NodeSet,
} from "../../src/core/node-set.ts";
import type { Node, NodeId } from "../../src/core/node.ts";
import { timed } from "../lab/usage.ts";
import { recordedEvents } from "./watch-fixture.ts";

const self = "self" as NodeId;

/** "b" is node b; "b2" is node b with another address. */
function node(name: string): Node {
  return {
    id: name.replace(/\d+$/, "") as NodeId,
    state: "up",
    publicKey: "",
    externalAddress: `192.0.2.${name.replace(/^\D+/, "") || "1"}`,
    prefixes: [],
    prefixCount: 0,
    consensusMember: false,
  };
}

/**
 * One move, as text: `open`, `open N`, `at SECONDS`, or an event: names of nodes, `-name` for a tombstone, `!` for
 * LAST_BACKLOGGED, like "self b -c !".
 */
function play(fromFile: string, moves: readonly string[], peers = ""): NodeSet {
  let nowMs = 0;
  let set = initialNodeSet(self, names(fromFile).map(node));
  for (const move of moves) {
    const [verb, value] = names(move);
    if (verb === "open") set = foldStreamOpened(set, ...(value === undefined ? [] : [Number(value)]));
    else if (verb === "at") nowMs = Number(value) * 1000;
    else set = foldEvent(set, event(move), { nowMs, peers: new Set(names(peers) as NodeId[]) });
  }
  return set;
}

function event(move: string): NodeEvent {
  const parts = names(move);
  return {
    nodes: parts.filter((part) => /^\w/.test(part)).map(node),
    tombstones: parts.filter((part) => part.startsWith("-")).map((part) => part.slice(1) as NodeId),
    lastBacklogged: parts.includes("!"),
  };
}

function names(text: string): string[] {
  return text.split(" ").filter((name) => name !== "");
}

/** "b", or "b2" with another address: as in a move. */
function name(each: Node): string {
  return each.id + each.externalAddress.replace("192.0.2.", "").replace(/^1$/, "");
}

function list(nodes: Iterable<Node>): string {
  return [...nodes].map(name).toSorted().join(" ");
}

/** The whole outcome in a line: known nodes, what of it is only carried, picture, hold. */
function outcome(set: NodeSet): string {
  const hold =
    set.hold === undefined ? "" : `, held since ${set.hold.sinceMs / 1000} s by ${set.hold.stream}`;
  return `${list(knownNodes(set))} | carried ${list(set.carried.values())} | ${set.picture}${hold}`;
}

const peers4 = "b c d e";

describe("foldEvent()", () => {
  test.each([
    {
      name: "knows what the file said before any event",
      file: "b c",
      moves: [],
      want: "b c | carried b c | partial",
    },
    {
      name: "adds and changes nodes while the backlog comes, and removes none",
      file: "b c",
      moves: ["open", "self b2", "d"],
      want: "b2 c d | carried c | partial",
    },
    {
      name: "removes by absence once the picture is full and contains this node",
      file: "b c",
      moves: ["open", "self b2", "d", "!"],
      want: "b2 d | carried  | believed",
    },
    {
      name: "honours a tombstone while the backlog comes, for what is carried and what is current",
      file: "b c",
      moves: ["open", "d -b", "-d"],
      want: "c | carried c | partial",
    },
    {
      name: "takes tombstones after the nodes of the same event",
      file: "",
      moves: ["open", "self b -b !"],
      want: " | carried  | believed",
    },
    {
      name: "brings a node back that comes again after its tombstone",
      file: "",
      moves: ["open", "self b !", "-b", "b2"],
      want: "b2 | carried  | believed",
    },
    {
      name: "does not believe a full picture without this node",
      file: "b c",
      moves: ["open", "b !"],
      want: "b c | carried c | without-self",
    },
    {
      name: "says without-self also when nothing would be removed",
      file: "",
      moves: ["open", "!"],
      want: " | carried  | without-self",
    },
    {
      name: "believes the picture when this node appears later",
      file: "b c",
      moves: ["open", "b !", "d", "self"],
      want: "b d | carried  | believed",
    },
    {
      name: "adds, changes and honours tombstones in a picture without this node",
      file: "b c",
      moves: ["open", "b !", "b2 d -c"],
      want: "b2 d | carried  | without-self",
    },
    {
      name: "holds a picture that lacks more than half of four peers",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "at 7", "self b !"],
      want: "b c d e | carried c d e | shrunk, held since 7 s by 1",
    },
    {
      name: "believes a picture that lacks exactly half of the peers",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b c !"],
      want: "b c | carried  | believed",
    },
    {
      name: "believes a picture that lacks all of three peers",
      file: "b c d",
      peers: "b c d",
      moves: ["open", "self !"],
      want: " | carried  | believed",
    },
    {
      name: "counts only peers of the applied mesh, not every node that is carried",
      file: "b c d e f g h",
      peers: peers4,
      moves: ["open", "self b c !"],
      want: "b c | carried  | believed",
    },
    {
      name: "judges a shrunk picture only after this node has appeared",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "!", "at 5", "self"],
      want: "b c d e | carried b c d e | shrunk, held since 5 s by 1",
    },
    {
      name: "keeps holding on the same stream however long, and through a repeated LAST_BACKLOGGED",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self !", "at 900", "b", "self !"],
      want: "b c d e | carried c d e | shrunk, held since 0 s by 1",
    },
    {
      name: "believes a held picture once nothing carried is absent any more",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self !", "b c", "d -e"],
      want: "b c d | carried  | believed",
    },
    {
      name: "honours tombstones in a held picture",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "-c -b"],
      want: "d e | carried d e | shrunk, held since 0 s by 1",
    },
    {
      name: "keeps the hold over a new stream, whose backlog removes nothing",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 400", "open", "self"],
      want: "b c d e | carried b c d e | partial, held since 0 s by 1",
    },
    {
      name: "holds another stream's agreement that comes before five minutes, from the first on",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 299", "open", "self b !"],
      want: "b c d e | carried c d e | shrunk, held since 0 s by 1",
    },
    {
      name: "believes another stream's agreement after five minutes, and the hold is over",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 300", "open", "self b !"],
      want: "b | carried  | believed",
    },
    {
      name: "does not let a stream that was held too early agree by getting older",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 200", "open", "self b !", "at 400", "b2"],
      want: "b2 c d e | carried c d e | shrunk, held since 0 s by 1",
    },
    {
      name: "forgets the hold at a believed picture, so that a later one is held anew",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 60", "open", "self b c d e !", "at 400", "open", "self b !"],
      want: "b c d e | carried c d e | shrunk, held since 400 s by 3",
    },
    {
      name: "keeps the hold through a picture without this node",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 100", "open", "b !", "at 400", "open", "self b !"],
      want: "b | carried  | believed",
    },
    {
      name: "says without-self when a held picture loses this node and nothing is absent",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "c d e -self"],
      want: "b c d e | carried  | without-self",
    },
    {
      name: "forgets the hold at a full picture that names the peers, also without this node",
      file: "b c d e",
      peers: peers4,
      moves: ["open", "self b !", "at 60", "open", "b c d e !", "at 400", "open", "self b !"],
      want: "b c d e | carried c d e | shrunk, held since 400 s by 3",
    },
    {
      name: "folds plainly after a believed picture, also at a repeated LAST_BACKLOGGED",
      file: "",
      peers: peers4,
      moves: ["open", "self b c d e !", "-b -c -d", "f !"],
      want: "e f | carried  | believed",
    },
    {
      name: "stays partial with a Curator that sends no LAST_BACKLOGGED",
      file: "b",
      moves: ["open", "self c", "d", "-c"],
      want: "b d | carried b | partial",
    },
    {
      name: "carries this node over streams but does not take it for seen",
      file: "",
      moves: ["open", "self b !", "open 9", "b !"],
      want: "b | carried self | without-self",
    },
  ])("$name", ({ file, peers = "", moves, want }) => {
    expect(outcome(play(file, moves, peers))).toBe(want);
  });

  test("gives the same set back when an event changes nothing", () => {
    const set = play("", ["open", "self b c !"]);
    expect(foldEvent(set, event("b c self -x !"), { nowMs: 1, peers: new Set() })).toBe(set);
  });

  test("keeps the object of a node that comes again unchanged on another stream", () => {
    const set = play("b c", ["open"]);
    const folded = foldEvent(set, event("b"), { nowMs: 0, peers: new Set() });
    expect(folded.current.get("b" as NodeId)).toBe(set.carried.get("b" as NodeId) as Node);
  });

  test("never changes its argument", () => {
    const set = play("b c", ["open", "self d"]);
    const before = outcome(set);
    foldEvent(set, event("e d2 -b !"), { nowMs: 0, peers: new Set() });
    expect(outcome(set)).toBe(before);
  });

  test("takes one changed node at 10,000 nodes in less than 20 ms", () => {
    const many = Array.from({ length: 10_000 }, (_, index) => ({ ...node("b"), id: `n${index}` as NodeId }));
    let set = foldEvent(
      foldStreamOpened(initialNodeSet(self, [])),
      { nodes: [node("self"), ...many], tombstones: [], lastBacklogged: true },
      { nowMs: 0, peers: new Set() },
    );
    const context = { nowMs: 0, peers: new Set(many.map((each) => each.id)) };
    const { processorMs } = timed(() => {
      for (let turn = 0; turn < 100; turn++) {
        const changed = { ...node("b"), id: `n${turn}` as NodeId, publicKey: `${turn}` };
        set = foldEvent(set, { nodes: [changed], tombstones: [], lastBacklogged: false }, context);
      }
    });
    expect(processorMs / 100).toBeLessThan(20);
    expect(set.current.size).toBe(10_001);
  });
});

describe("selfNode()", () => {
  test.each([
    {
      name: "is absent before the current stream has shown this node",
      moves: ["open", "self !", "open"],
      want: undefined,
    },
    { name: "is this node as last shown", moves: ["open", "self !", "self7"], want: "192.0.2.7" },
  ])("$name", ({ moves, want }) => {
    expect(selfNode(play("", moves))?.externalAddress).toBe(want as string);
  });
});

/** A recorded node, short. */
function short(each: Node): string {
  return `${each.id.slice(11, 15)} ${each.externalAddress} ${each.prefixes.join(",")}`;
}

/** The recorded stream, folded for a node of this ID. */
function fold(stream: number, own: NodeId): NodeSet {
  return recordedEvents(stream).reduce(
    (set, each) => foldEvent(set, each, { nowMs: 0, peers: new Set() }),
    foldStreamOpened(initialNodeSet(own, [])),
  );
}

describe("with the real Curator's recorded streams", () => {
  test("stream 2 ends with what was last written of every node, the deleted one gone", () => {
    const set = fold(2, "metropolis-9a41c3795f4e6863b51eceaf11b545c8" as NodeId);
    expect({ picture: set.picture, nodes: [...set.current.values()].map(short) }).toEqual({
      picture: "believed",
      nodes: ["a93e 192.0.2.101 ", "9a41  10.192.7.0/24", "d25b 192.0.2.4 192.0.2.4/32"],
    });
  });

  test("stream 7 never hears of the lost tombstone: the deleted node stays until a new picture", () => {
    const own = "metropolis-9a41c3795f4e6863b51eceaf11b545c8" as NodeId;
    const set = fold(7, own);
    const after = [
      "b777 192.0.2.201 ",
      "d25b 192.0.2.4 10.200.49.0/24",
      "db55 192.0.2.203 ",
      "28bf 192.0.2.204 ",
    ];
    expect(knownNodes(set).map(short)).toEqual(["ad64 192.0.2.202 ", ...after]);
    const anew = foldEvent(
      foldStreamOpened(set),
      {
        nodes: [...set.current.values()].filter((each) => !each.id.startsWith("metropolis-ad64")),
        tombstones: [],
        lastBacklogged: true,
      },
      { nowMs: 0, peers: new Set() },
    );
    expect(knownNodes(anew).map(short)).toEqual(after);
  });

  test("every event of every recorded stream folds without a node that no event named", () => {
    for (const stream of [0, 1, 2, 3, 7]) {
      const named = new Set(recordedEvents(stream).flatMap((each) => each.nodes.map((one) => one.id)));
      expect([...fold(stream, self).current.keys()].filter((id) => !named.has(id))).toEqual([]);
    }
  });
});

describe("whatever comes in whatever order", () => {
  const id = fc.constantFrom("self", "b", "c", "d", "e", "f");
  const move = fc.oneof(
    {
      weight: 6,
      arbitrary: fc.record({
        kind: fc.constant("event" as const),
        nodes: fc.array(fc.tuple(id, fc.integer({ min: 1, max: 3 })), { maxLength: 4 }),
        tombstones: fc.array(id, { maxLength: 1 }),
        lastBacklogged: fc.boolean(),
      }),
    },
    { weight: 1, arbitrary: fc.record({ kind: fc.constant("open" as const) }) },
    {
      weight: 1,
      arbitrary: fc.record({
        kind: fc.constant("wait" as const),
        ms: fc.integer({ min: 1, max: 2 * holdMs }),
      }),
    },
  );
  const walk = fc.record({
    file: fc.uniqueArray(id.filter((name) => name !== "self")),
    peers: fc.uniqueArray(id.filter((name) => name !== "self")),
    moves: fc.array(move, { maxLength: 25 }),
  });

  test("events of a believed picture folded at once give what they give one after the other", () => {
    const events = fc.array(
      fc.record({
        nodes: fc.array(fc.tuple(id, fc.integer({ min: 1, max: 2 }))),
        tombstones: fc.array(id),
      }),
      { maxLength: 12 },
    );
    fc.assert(
      fc.property(events, (changes) => {
        const context = { nowMs: 0, peers: new Set<NodeId>() };
        const believed = play("", ["open", "self b c !"]);
        const singly: NodeEvent[] = changes.map(({ nodes, tombstones }) => ({
          nodes: nodes.map(([name, version]) => node(`${name}${version}`)),
          tombstones: tombstones as NodeId[],
          lastBacklogged: false,
        }));
        const one = singly.reduce((set, each) => foldEvent(set, each, context), believed);
        const all = foldBelieved(believed, singly);
        expect({ ...all, current: new Map(all.current) }).toEqual({ ...one, current: new Map(one.current) });
      }),
    );
  });

  test("no node is lost without a tombstone or a believed picture, and a believed one is exactly the stream's", () => {
    fc.assert(
      fc.property(walk, ({ file, peers, moves }) => {
        let set = foldStreamOpened(initialNodeSet(self, file.map(node)));
        let nowMs = 0;
        for (const each of moves) {
          const before = set;
          const had = new Set([...before.carried.keys(), ...before.current.keys()]);
          if (each.kind === "wait") nowMs += each.ms;
          else if (each.kind === "open") set = foldStreamOpened(set);
          else {
            set = foldEvent(
              set,
              {
                nodes: each.nodes.map(([name, version]) => node(`${name}${version}`)),
                tombstones: each.tombstones as NodeId[],
                lastBacklogged: each.lastBacklogged,
              },
              { nowMs, peers: new Set(peers as NodeId[]) },
            );
            for (const gone of each.tombstones) {
              expect(set.current.has(gone as NodeId) || set.carried.has(gone as NodeId)).toBe(false);
              had.delete(gone as NodeId);
            }
            for (const [name, version] of each.nodes.toReversed()) {
              if (each.tombstones.includes(name)) continue;
              const last = each.nodes.findLast(([other]) => other === name)?.[1] ?? version;
              expect(set.current.get(name as NodeId)?.externalAddress).toBe(`192.0.2.${last}`);
            }
          }
          if (set.picture === "believed") {
            expect([...set.carried]).toEqual([]);
            expect(set.hold).toBeUndefined();
            if (before.picture !== "believed") expect(set.current.has(self)).toBe(true);
          } else {
            for (const name of had) expect(set.current.has(name) || set.carried.has(name)).toBe(true);
          }
          for (const name of set.current.keys()) expect(set.carried.has(name)).toBe(false);
        }
      }),
      { numRuns: 500 },
    );
  });

  test("how a backlog is cut into events does not matter", () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(id),
        fc.uniqueArray(id, { minLength: 1 }),
        fc.array(fc.nat({ max: 6 }), { maxLength: 4 }),
        (file, backlog, cuts) => {
          const start = foldStreamOpened(initialNodeSet(self, file.map(node)));
          const context = { nowMs: 0, peers: new Set(file as NodeId[]) };
          const whole = foldEvent(
            start,
            { nodes: backlog.map(node), tombstones: [], lastBacklogged: true },
            context,
          );
          let set = start;
          const edges = [0, ...cuts.toSorted((a, b) => a - b), backlog.length];
          for (let index = 1; index < edges.length; index++) {
            const nodes = backlog.slice(edges[index - 1], edges[index]).map(node);
            set = foldEvent(
              set,
              { nodes, tombstones: [], lastBacklogged: index === edges.length - 1 },
              context,
            );
          }
          expect(outcome(set)).toBe(outcome(whole));
        },
      ),
      { numRuns: 300 },
    );
  });
});
