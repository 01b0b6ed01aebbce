/**
 * The tracker: which mesh the events of several streams make, and when peers may be removed.
 */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { judgeNode } from "../src/core/claim.ts";
import { parsePublicKey, privateKeyFromBytes } from "../src/core/key.ts";
import { buildMesh, incumbentsOf, type Incumbents } from "../src/core/mesh.ts";
import { foldEvent, foldStreamOpened, initialNodeSet, knownNodes } from "../src/core/node-set.ts";
import { asNodeId, type Node, type NodeId } from "../src/core/node.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import type { DecodedEvent } from "../src/curator/connection.ts";
import { Tracker, absentMs, settleMs, type BuildRules } from "../src/tracker.ts";

const id = (text: string): NodeId => {
  const nodeId = asNodeId(text);
  if (nodeId === undefined) throw new Error(`no node ID: ${text}`);
  return nodeId;
};

const key = (seed: string): string =>
  privateKeyFromBytes(new Uint8Array(32).fill(seed.charCodeAt(0))).publicKey;

/** Node `name` at 192.0.2.<its code> with these prefixes beside its own address. */
function node(name: string, ...prefixes: readonly string[]): Node {
  const externalAddress = `192.0.2.${name.charCodeAt(0)}`;
  return {
    id: id(name),
    state: "up",
    publicKey: key(name),
    externalAddress,
    prefixes: [`${externalAddress}/32`, ...prefixes],
    prefixCount: prefixes.length + 1,
    consensusMember: false,
  };
}

const self = node("a", "10.192.1.0/24");

const rules: BuildRules = {
  clusterNets: [parsePrefix("10.192.0.0/11")],
  ownPublicKey: privateKeyFromBytes(new Uint8Array(32).fill(97)).publicKey,
  hostAddresses: new Set(),
  ownPrefixes: [parsePrefix("192.0.2.97/32"), parsePrefix("10.192.1.0/24")],
};

function event(nodes: readonly Node[], last = false, tombstones: readonly string[] = []): DecodedEvent {
  return { nodes, tombstones: tombstones.map(id), lastBacklogged: last, problems: [] };
}

/** The mesh as one line a peer, and what else the tracker says. */
function shown(tracker: Tracker): string {
  const { mesh, exact, problems } = tracker.build(rules);
  const peers = mesh.peers.map(
    (peer) => `${peer.nodeId}: ${peer.prefixes.map((each) => each.text).join(" ")}`,
  );
  return [...peers, exact ? "exact" : "open", ...problems.map(({ kind }) => kind)].join(" | ");
}

function tracker(fromFile: readonly Node[] = [], complete = true): Tracker {
  return new Tracker({ self: self.id, fromFile, complete });
}

const opened = (stream: number, replaces?: number) =>
  ({ kind: "opened", stream, address: "c:1", ...(replaces === undefined ? {} : { replaces }) }) as const;

describe("Tracker", () => {
  test("starts with the mesh of the file, before any stream", () => {
    const each = tracker([node("b", "10.192.2.0/24")]);
    expect(shown(each)).toBe("b: 10.192.2.0/24 192.0.2.98/32 | exact");
    expect(each.picture).toBe("none");
    expect(each.heardOut).toBe(false);
  });

  test("keeps the file's peers until the full picture, then only what it shows", () => {
    const each = tracker([node("b", "10.192.2.0/24"), node("c")]);
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([node("c", "10.192.3.0/24")]) }, 1);
    expect(shown(each)).toBe("b: 10.192.2.0/24 192.0.2.98/32 | c: 10.192.3.0/24 192.0.2.99/32 | exact");
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 2);
    expect(shown(each)).toBe("c: 10.192.3.0/24 192.0.2.99/32 | exact");
  });

  test("removes nothing by absence when the file was lost and the interface is up, until a picture is believed", () => {
    const each = tracker([], false);
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([node("b")]) }, 1);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | open");
    expect(each.believed).toBe(false);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 2);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | exact");
  });

  test("reports a picture without this node and removes nobody by it", () => {
    const each = tracker([node("b")]);
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([node("c")], true) }, 1);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 192.0.2.99/32 | exact | picture-without-self");
  });

  test("reports a picture without a node that has just been made only when it stays out of it", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([node("c")], true) }, 1000);
    expect(shown(each)).toBe("c: 192.0.2.99/32 | exact");
    expect(each.settleAtMs).toBe(1000 + absentMs);
    each.settle(1000 + absentMs);
    expect(shown(each)).toBe("c: 192.0.2.99/32 | exact | picture-without-self");
    expect(each.settleAtMs).toBeUndefined();
    each.fold({ kind: "event", stream: 1, event: event([self]) }, 20_000);
    expect(shown(each)).toBe("c: 192.0.2.99/32 | exact");
  });

  test("decides a backlog at its end: who came first in it wins nothing", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([node("0", "10.193.0.0/16")]) }, 1);
    expect(shown(each)).toContain("0: 10.193.0.0/16");
    const others = ["p", "q", "r"].map((name, index) => node(name, `10.193.${index}.0/24`));
    each.fold({ kind: "event", stream: 1, event: event(others) }, 2);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 3);
    expect(shown(each)).toBe(
      "0: 192.0.2.48/32 | p: 10.193.0.0/24 192.0.2.112/32 | q: 10.193.1.0/24 192.0.2.113/32 | " +
        "r: 10.193.2.0/24 192.0.2.114/32 | exact | prefix-taken",
    );
  });

  test("lets the holder keep a prefix over streams, also one that came live after the picture", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    each.fold({ kind: "event", stream: 1, event: event([node("c", "10.192.4.0/24")]) }, 2);
    shown(each);
    each.fold({ kind: "event", stream: 1, event: event([node("b", "10.192.4.0/24")]) }, 3);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 10.192.4.0/24 192.0.2.99/32 | exact | prefix-taken");
    each.fold({ kind: "closed", stream: 1 }, 4);
    each.fold(opened(2), 5);
    each.fold({ kind: "event", stream: 2, event: event([node("b", "10.192.4.0/24")]) }, 6);
    shown(each);
    each.fold({ kind: "event", stream: 2, event: event([node("c", "10.192.4.0/24"), self], true) }, 7);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 10.192.4.0/24 192.0.2.99/32 | exact | prefix-taken");
    each.fold({ kind: "event", stream: 2, event: event([node("c")]) }, 8);
    expect(shown(each)).toBe("b: 10.192.4.0/24 192.0.2.98/32 | c: 192.0.2.99/32 | exact");
  });

  test.each([
    { name: "that were prepared one by one", looks: false, want: ["b: 10.192.4.0/24", "c: 192"] },
    {
      name: "that a mesh was made of one by one, which then holds",
      looks: true,
      want: ["b: 192", "c: 10.192.4.0/24"],
    },
  ])("decides about changes $name", ({ looks, want }) => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    shown(each);
    for (const name of ["d", "c", "b"]) {
      const prefixes = name === "d" ? [] : ["10.192.4.0/24"];
      each.fold({ kind: "event", stream: 1, event: event([node(name, ...prefixes)]) }, 2);
      if (looks) shown(each);
      else each.prepare(rules);
    }
    for (const part of want) expect(shown(each)).toContain(part);
  });

  test("uses a replacing stream only when its picture is full, and goes on with the old one until then", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self, node("b"), node("c")], true) }, 1);
    each.fold(opened(2, 1), 2);
    each.fold({ kind: "event", stream: 2, event: event([self, node("b", "10.192.2.0/24")]) }, 3);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 192.0.2.99/32 | exact");
    each.fold({ kind: "event", stream: 1, event: event([node("d")]) }, 4);
    expect(shown(each)).toContain("d: ");
    each.fold({ kind: "event", stream: 2, event: event([node("d")], true) }, 5);
    expect(shown(each)).toBe("b: 10.192.2.0/24 192.0.2.98/32 | d: 192.0.2.100/32 | exact");
    each.fold({ kind: "closed", stream: 1 }, 6);
    each.fold({ kind: "event", stream: 2, event: event([], false, ["d"]) }, 7);
    expect(shown(each)).toBe("b: 10.192.2.0/24 192.0.2.98/32 | exact");
  });

  test("takes what a replacing stream has brought when the old one ends first", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self, node("b")], true) }, 1);
    each.fold(opened(2, 1), 2);
    each.fold({ kind: "event", stream: 2, event: event([node("c")]) }, 3);
    each.fold({ kind: "closed", stream: 1 }, 4);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 192.0.2.99/32 | exact");
    each.fold({ kind: "event", stream: 2, event: event([self], true) }, 5);
    expect(shown(each)).toBe("c: 192.0.2.99/32 | exact");
  });

  test("tells of nodes that come again with nothing changed, by what the stream that decides has named", () => {
    const each = tracker([node("b"), node("c"), node("d")]);
    const nodes = [self, node("b"), node("c"), node("d")];
    const all = (stream: number, atMs: number): boolean =>
      each.fold({ kind: "event", stream, event: event(nodes, true) }, atMs);
    each.fold(opened(1), 0);
    // What the file names too comes for the first time.
    expect(all(1, 70_000)).toBe(false);
    each.fold(opened(2, 1), 80_000);
    each.fold({ kind: "event", stream: 2, event: event([self]) }, 80_000);
    expect(each.fold({ kind: "event", stream: 1, event: event([self, node("b")]) }, 80_000)).toBe(false);
    expect(all(2, 80_000)).toBe(false);
    // Not in the first minute of this stream, however old the one before.
    expect(all(2, 139_000)).toBe(false);
    expect(all(1, 141_000)).toBe(false);
    expect(all(2, 141_000)).toBe(true);
    expect(all(2, 142_000)).toBe(false);
  });

  test("ignores events of streams that are over", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold(opened(2), 1);
    each.fold({ kind: "event", stream: 1, event: event([node("b")]) }, 2);
    expect(shown(each)).toBe("exact");
  });

  test("takes a Curator without LAST_BACKLOGGED as heard out ten seconds after its first event, and removes nothing", () => {
    const each = tracker([node("b")]);
    each.fold(opened(1), 0);
    expect(each.settleAtMs).toBeUndefined();
    each.fold({ kind: "event", stream: 1, event: event([self, node("c")]) }, 500);
    expect(each.settleAtMs).toBe(500 + settleMs);
    each.settle(499 + settleMs);
    expect(each.heardOut).toBe(false);
    each.settle(500 + settleMs);
    expect(each.heardOut).toBe(true);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | c: 192.0.2.99/32 | exact");
  });

  test("holds a picture that lacks more than half of the peers until another stream agrees five minutes later", () => {
    const each = tracker();
    const names = ["b", "c", "d", "e"];
    each.fold(opened(1), 0);
    each.fold(
      { kind: "event", stream: 1, event: event([self, ...names.map((name) => node(name))], true) },
      0,
    );
    shown(each);
    each.fold({ kind: "closed", stream: 1 }, 1);
    each.fold(opened(2), 2);
    each.fold({ kind: "event", stream: 2, event: event([self, node("b")], true) }, 1000);
    expect(shown(each)).toBe(
      "b: 192.0.2.98/32 | c: 192.0.2.99/32 | d: 192.0.2.100/32 | e: 192.0.2.101/32 | exact | picture-shrunk",
    );
    expect(each.heldSinceMs).toBe(1000);
    each.fold(opened(3, 2), 301_000);
    each.fold({ kind: "event", stream: 3, event: event([self, node("b")], true) }, 301_001);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | exact");
    expect(each.heldSinceMs).toBeUndefined();
  });

  test("holds such a picture also when it comes before the first mesh has been made of the file", () => {
    const names = ["b", "c", "d", "e"];
    const each = tracker(names.map((name) => node(name)));
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    expect(shown(each)).toBe(
      "b: 192.0.2.98/32 | c: 192.0.2.99/32 | d: 192.0.2.100/32 | e: 192.0.2.101/32 | exact | picture-shrunk",
    );
    expect(each.believed).toBe(false);
  });

  test("tells the Curators of consensus members once the picture is whole, and keeps them when one names none", () => {
    const each = tracker();
    const member = (name: string): Node => ({ ...node(name), consensusMember: true, curatorPort: 7835 });
    const told = (): string =>
      each
        .curators(rules.clusterNets)
        .map(({ nodeId, address }) => `${nodeId} ${address}`)
        .join(", ");
    each.fold(opened(1), 0);
    each.fold(
      { kind: "event", stream: 1, event: event([member("b"), { ...node("c"), curatorPort: 7835 }]) },
      0,
    );
    expect(told()).toBe("");
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    expect(told()).toBe("b 192.0.2.98:7835");
    const before = each.curators(rules.clusterNets);
    each.fold({ kind: "event", stream: 1, event: event([node("e")]) }, 2);
    expect(each.curators(rules.clusterNets)).toBe(before);
    each.fold({ kind: "event", stream: 1, event: event([member("d")], false, ["b"]) }, 2);
    expect(told()).toBe("d 192.0.2.100:7835");
    each.fold(opened(2), 3);
    each.fold({ kind: "event", stream: 2, event: event([member("b")]) }, 3);
    expect(told()).toBe("d 192.0.2.100:7835");
    each.fold({ kind: "event", stream: 2, event: event([self, node("b")], true) }, 4);
    expect(told()).toBe("d 192.0.2.100:7835");
  });

  test("forgets what could not be decoded of a node when it comes again, or goes", () => {
    const each = tracker();
    const broken = (name: string): DecodedEvent => ({
      ...event([node(name)]),
      problems: [{ kind: "address-invalid", nodeId: id(name), message: `status of ${name}` }],
    });
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    each.fold({ kind: "event", stream: 1, event: broken("b") }, 2);
    each.fold({ kind: "event", stream: 1, event: broken("c") }, 3);
    expect(shown(each)).toEndWith("exact | address-invalid | address-invalid");
    each.fold({ kind: "event", stream: 1, event: event([node("b")]) }, 4);
    expect(shown(each)).toEndWith("exact | address-invalid");
    each.fold({ kind: "event", stream: 1, event: event([], false, ["c"]) }, 5);
    expect(shown(each)).toBe("b: 192.0.2.98/32 | exact");
  });

  test("says of a node whose status could not be decoded nothing else of its address", () => {
    const each = tracker();
    const b: Node = { ...node("b"), externalAddress: "", prefixes: [], prefixCount: 0 };
    const broken: DecodedEvent = {
      ...event([b]),
      problems: [{ kind: "address-invalid", nodeId: id("b"), message: "status of b" }],
    };
    each.fold(opened(1), 0);
    each.fold(
      { kind: "event", stream: 1, event: event([self, { ...b, id: id("c"), publicKey: key("c") }], true) },
      1,
    );
    each.fold({ kind: "event", stream: 1, event: broken }, 2);
    expect(shown(each)).toBe("b:  | c:  | exact | address-missing | address-invalid");
    each.fold({ kind: "event", stream: 1, event: event([b]) }, 3);
    expect(shown(each)).toBe("b:  | c:  | exact | address-missing | address-missing");
  });

  test("forgets a node whose ID is none at its tombstone", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self], true) }, 1);
    const problem = { kind: "node-id", message: "Cannot use node" } as const;
    each.fold({ kind: "event", stream: 1, event: { ...event([]), problems: [problem] } }, 2);
    expect(shown(each)).toBe("exact | node-id");
    each.fold({ kind: "event", stream: 1, event: { ...event([]), ended: ["Cannot use node"] } }, 3);
    expect(shown(each)).toBe("exact");
  });

  test("gives the same mesh object while nothing changes, so that nothing is rendered or applied again", () => {
    const each = tracker();
    each.fold(opened(1), 0);
    each.fold({ kind: "event", stream: 1, event: event([self, node("b", "10.192.2.0/24")], true) }, 1);
    const first = each.build(rules);
    each.fold({ kind: "event", stream: 1, event: event([node("b", "10.192.2.0/24")]) }, 2);
    expect(each.build(rules)).toBe(first);
  });
});

/** Made once: a public key takes its time. */
const blanks = new Map(["a", "b", "c", "d", "e", "f"].map((name) => [name, node(name)]));
const blank = (name: string): Node => blanks.get(name) ?? expect.unreachable();

/** Every prefix in dispute somewhere, two nodes with one key, and this node's own prefixes claimed by others. */
const anyNode = fc
  .record({
    name: fc.constantFrom("b", "c", "d", "e", "f", "a"),
    key: fc.constantFrom("b", "c", "d", "a"),
    prefixes: fc.subarray(
      ["10.192.2.0/24", "10.192.2.64/26", "10.192.2.7/32", "10.194.0.0/15", "10.194.7.0/24", "10.192.1.0/25"],
      { maxLength: 3 },
    ),
  })
  .map(({ name, key: of, prefixes }) => {
    const named = blank(name);
    const all = [...named.prefixes, ...prefixes];
    return {
      ...named,
      publicKey: blank(name === "a" ? "a" : of).publicKey,
      prefixes: all,
      prefixCount: all.length,
    };
  });
const anyNodes = fc.array(anyNode, { maxLength: 6 });
const anyOccurrence = fc.oneof(
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("open" as const) }) },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant("event" as const),
      nodes: anyNodes,
      tombstones: fc.subarray(["b", "c", "d", "a"], { maxLength: 2 }),
      last: fc.constantFrom(true, false, false),
      withSelf: fc.boolean(),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("wait" as const), ms: fc.constantFrom(1_000, 301_000) }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("rules" as const),
      own: fc.subarray(["10.192.1.0/24", "10.192.2.0/25", "10.194.8.0/24"]),
      hostAddress: fc.constantFrom("192.0.2.98", "192.0.2.99"),
    }),
  },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("prepare" as const) }) },
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("build" as const) }) },
);

test("Tracker builds what all known nodes together make, though it looks only at what changed", () => {
  fc.assert(
    fc.property(
      fc.uniqueArray(anyNode, { selector: ({ id }) => id, maxLength: 4 }),
      fc.array(anyOccurrence, { minLength: 10, maxLength: 50, size: "max" }),
      (fromFile, occurrences) => {
        const each = tracker(fromFile);
        let set = initialNodeSet(self.id, fromFile);
        let incumbents: Incumbents = {
          prefixes: new Map(fromFile.flatMap((of) => of.prefixes.map((text) => [text, of.id]))),
          keys: new Map(fromFile.map((of) => [parsePublicKey(of.publicKey), of.id])),
        };
        let peers: ReadonlySet<NodeId> = new Set(fromFile.map((of) => of.id));
        let by = rules;
        let nowMs = 0;
        for (const occurrence of occurrences) {
          switch (occurrence.kind) {
            case "open":
              each.fold(opened(set.stream + 1), nowMs);
              set = foldStreamOpened(set);
              break;
            case "event": {
              if (set.stream === 0) break;
              const nodes = occurrence.withSelf ? [self, ...occurrence.nodes] : occurrence.nodes;
              const next = event(nodes, occurrence.last, occurrence.tombstones);
              each.fold({ kind: "event", stream: set.stream, event: next }, nowMs);
              set = foldEvent(set, next, { nowMs, peers });
              break;
            }
            case "wait":
              nowMs += occurrence.ms;
              each.settle(nowMs);
              break;
            case "rules":
              by = {
                ...rules,
                ownPrefixes: occurrence.own.map(parsePrefix),
                hostAddresses: new Set([occurrence.hostAddress]),
              };
              break;
            case "prepare":
              each.prepare(by);
              break;
            case "build": {
              const { mesh, problems } = buildMesh({
                claims: knownNodes(set).map((known) => judgeNode(known, by)),
                ownPrefixes: by.ownPrefixes,
                incumbents,
              });
              const built = each.build(by);
              expect(built.mesh).toEqual(mesh);
              expect(built.problems.filter(({ nodeId }) => nodeId !== undefined)).toEqual([...problems]);
              peers = new Set(mesh.peers.map(({ nodeId }) => nodeId));
              if (each.heardOut) incumbents = incumbentsOf(mesh);
            }
          }
        }
      },
    ),
    { numRuns: 300 },
  );
});
