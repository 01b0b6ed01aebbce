/**
 * Watch streams over real connections: first picture, changes, tombstones, slow and dead watchers, restarts.
 */
import { afterEach, describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { connect, createServer, type Socket } from "node:net";
import { createChannel } from "nice-grpc";
import type { NodeId } from "../../src/core/node.ts";
import { unavailable } from "../../src/curator-server/refusal.ts";
import { FanOut } from "../../src/curator-server/fan-out.ts";
import { maxWatchesOfCaller } from "../../src/curator-server/service.ts";
import { maxFormerKeys } from "../../src/curator-server/registry.ts";
import { MemoryStore, type StoredNode } from "../../src/curator-server/store.ts";
import { WatchEvent } from "../../src/gen/curator.ts";
import type { LogFields } from "../../src/log.ts";
import { waitFor } from "../lab/wait.ts";
import {
  clientOf,
  codeNameOf,
  codeOf,
  keyOf,
  refusalOf,
  seenEvent,
  startCluster,
  statusBytes,
  Stream,
  type SeenEvent,
  type TestCluster,
} from "./cluster.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function cluster(...settings: Parameters<typeof startCluster>): Promise<TestCluster> {
  const started = await startCluster(...settings);
  cleanups.push(() => started.stop());
  return started;
}

function stream(at: TestCluster, caller: string, node?: string): Stream {
  const opened = new Stream(at.client(caller), node);
  cleanups.push(() => opened.close());
  return opened;
}

const nothing = { nodes: [], tombstones: [], last: false };
const plain = (id: string, externalAddress: string) => ({ id, externalAddress, publicKey: "", prefixes: [] });

describe("Watch of all nodes", () => {
  test("brings an empty full picture of an empty cluster", async () => {
    const at = await cluster();
    expect(await stream(at, "a").next()).toEqual({ ...nothing, last: true });
  });

  test("brings the picture, then one event a change, then tombstones", async () => {
    const at = await cluster();
    await at.report("a", "192.0.2.1");
    const watch = stream(at, "a");
    expect(await watch.next()).toEqual({ ...nothing, nodes: [plain("a", "192.0.2.1")], last: true });

    await at.report("b", "192.0.2.2");
    expect(await watch.next()).toEqual({ ...nothing, nodes: [plain("b", "192.0.2.2")] });

    expect(await at.announce("b", keyOf(1), ["192.0.2.2/32", "10.192.1.0/24"])).toBe("OK");
    const announced = {
      ...plain("b", "192.0.2.2"),
      publicKey: keyOf(1),
      prefixes: ["192.0.2.2/32", "10.192.1.0/24"],
    };
    expect(await watch.next()).toEqual({ ...nothing, nodes: [announced] });

    // The same once more gives no event; a status report always does, so the next event is the report's.
    expect(await at.announce("b", keyOf(1), ["192.0.2.2/32", "10.192.1.0/24"])).toBe("OK");
    await at.report("b", "192.0.2.2");
    await at.server.registry.remove("b" as NodeId);
    expect(await watch.next()).toEqual({ ...nothing, nodes: [announced] });
    expect(await watch.next()).toEqual({ ...nothing, tombstones: ["b"] });
  });

  test("every status report gives an event with a later time, nothing else changed", async () => {
    let nowMs = 1_000;
    const at = await cluster({ now: () => (nowMs += 1_000) });
    await at.report("a", "192.0.2.1");
    const first = at.server.registry.nodes[0];
    const watch = stream(at, "a");
    await watch.next();
    await at.report("a", "192.0.2.1");
    await watch.next();
    const second = at.server.registry.nodes[0];
    expect([first?.reportedAtMs, second?.reportedAtMs]).toEqual([2_000, 3_000]);
    expect(second?.status).not.toEqual(first?.status);
  });

  test("cuts a large picture into events after 2 MiB, with one LAST_BACKLOGGED", async () => {
    const store = new MemoryStore();
    const prefixes = Array.from({ length: 1000 }, (_, index) => `10.192.${index >> 8}.${index & 255}/32`);
    for (let index = 0; index < 400; index++) {
      store.commit([
        {
          kind: "put",
          node: {
            id: `n${index}` as NodeId,
            externalAddress: "192.0.2.1",
            reportedAtMs: 0,
            status: statusBytes("192.0.2.1"),
            publicKey: keyOf(index),
            // Overlapping on purpose: only the size counts here.
            prefixes,
          },
        },
      ]);
    }
    const at = await cluster({ store });
    const abort = new AbortController();
    cleanups.push(() => abort.abort());
    const channel = createChannel(`127.0.0.1:${at.server.port}`, undefined, {
      "grpc.max_receive_message_length": 64 * 1024 * 1024,
    });
    cleanups.push(() => channel.close());
    const sizes: number[] = [];
    const ids = new Set<string>();
    const kind = { $case: "nodesInCluster", nodesInCluster: {} } as const;
    for await (const event of clientOf(channel, "a").watch({ kind }, { signal: abort.signal })) {
      sizes.push(WatchEvent.encode(event).finish().length);
      for (const { id } of seenEvent(event).nodes) ids.add(id);
      if (seenEvent(event).last) break;
    }
    expect(ids.size).toBe(400);
    expect(sizes.length).toBe(4);
    for (const size of sizes) expect(size).toBeLessThan(2 * 1024 * 1024 + 64 * 1024);
    for (const size of sizes.slice(0, -1)) expect(size).toBeGreaterThan(2 * 1024 * 1024);
  });

  test("a restart costs a reconnect: the same nodes, keys and removals", async () => {
    const store = new MemoryStore();
    const before = await startCluster({ store });
    await before.report("a", "192.0.2.1");
    await before.report("b", "192.0.2.2");
    await before.announce("a", keyOf(1), ["10.192.1.0/24"]);
    await before.server.registry.remove("b" as NodeId);
    const watch = new Stream(before.client("a"));
    const picture = await watch.next();
    const { port } = before.server;
    const ended = watch.end();
    await before.stop();
    expect(await ended).toMatch(/^(UNAVAILABLE|CANCELLED)$/);

    const after = await cluster({ store, port });
    expect(await stream(after, "a").next()).toEqual(picture);
    expect(await after.report("b", "192.0.2.2")).toBe("NOT_FOUND");
    await after.report("c", "192.0.2.3");
    expect(await after.announce("c", keyOf(1), [])).toBe("INVALID_ARGUMENT");
    expect(await after.announce("c", keyOf(2), ["10.192.1.0/25"])).toBe("INVALID_ARGUMENT");
    expect(await after.announce("a", keyOf(1), ["10.192.1.0/24"])).toBe("OK");
  });

  test("stopping ends streams UNAVAILABLE, and soon", async () => {
    const at = await startCluster();
    const watch = new Stream(at.client("a"));
    await watch.next();
    const leader = at.local().getCurrentLeader({})[Symbol.asyncIterator]();
    await leader.next();
    const ended = watch.end();
    const leaderEnded = leader.next().then(() => "answered", codeNameOf);
    const start = performance.now();
    await at.server.stop();
    expect([await ended, await leaderEnded]).toEqual(["UNAVAILABLE", "UNAVAILABLE"]);
    expect(performance.now() - start).toBeLessThan(3_000);
    await at.stop();
  });
});

describe("Watch of one node", () => {
  test("brings the node, its changes and its tombstone, no LAST_BACKLOGGED, and goes on", async () => {
    const at = await cluster();
    await at.report("a", "192.0.2.1");
    const watch = stream(at, "x", "a");
    expect(await watch.next()).toEqual({ ...nothing, nodes: [plain("a", "192.0.2.1")] });
    await at.report("other", "192.0.2.9");
    await at.report("a", "192.0.2.2");
    expect(await watch.next()).toEqual({ ...nothing, nodes: [plain("a", "192.0.2.2")] });
    await at.server.registry.remove("a" as NodeId);
    expect(await watch.next()).toEqual({ ...nothing, tombstones: ["a"] });
    await at.server.registry.allow("a" as NodeId);
    await at.report("a", "192.0.2.3");
    expect(await watch.next()).toEqual({ ...nothing, nodes: [plain("a", "192.0.2.3")] });
  });

  test("brings nothing of a node that is not there, until it is", async () => {
    const at = await cluster();
    const watch = stream(at, "x", "later");
    const first = watch.next();
    await waitFor(() => at.server.registry.fanOut.watchers === 1, "the watch to be there");
    await at.report("later", "192.0.2.1");
    expect(await first).toEqual({ ...nothing, nodes: [plain("later", "192.0.2.1")] });
  });

  test.each([
    ["with a slash", "a/b"],
    ["empty", ""],
    ["with a space", "a b"],
  ])("refuses a node ID %s", async (_name, id) => {
    const at = await cluster();
    expect(await new Stream(at.client("x"), id).end()).toBe("INVALID_ARGUMENT");
  });
});

test("Watch of nothing is UNIMPLEMENTED", async () => {
  const at = await cluster();
  const events = at.client("x").watch({})[Symbol.asyncIterator]();
  expect(await codeOf(events.next())).toBe("UNIMPLEMENTED");
});

describe("a removed node", () => {
  test("is told NOT_FOUND on its stream and by every call, until it is allowed", async () => {
    const at = await cluster();
    await at.report("a", "192.0.2.1");
    await at.announce("a", keyOf(1), ["10.192.1.0/24"]);
    const own = stream(at, "a");
    const others = stream(at, "b");
    await own.next();
    await others.next();
    expect(await at.server.registry.remove("a" as NodeId)).toBe("done");
    expect(await own.end()).toBe("NOT_FOUND");
    expect(await others.next()).toEqual({ ...nothing, tombstones: ["a"] });
    expect([
      await at.report("a", "192.0.2.1"),
      await at.announce("a", keyOf(1), []),
      await stream(at, "a").end(),
    ]).toEqual(["NOT_FOUND", "NOT_FOUND", "NOT_FOUND"]);

    // Its prefixes are free and its key is not.
    await at.report("c", "192.0.2.3");
    expect(await at.announce("c", keyOf(1), [])).toBe("INVALID_ARGUMENT");
    expect(await at.announce("c", keyOf(3), ["10.192.1.0/24"])).toBe("OK");

    expect(await at.server.registry.allow("a" as NodeId)).toBe("done");
    expect(await at.announce("a", keyOf(1), [])).toBe("FAILED_PRECONDITION");
    expect(await at.report("a", "192.0.2.1")).toBe("OK");
    expect(await at.announce("a", keyOf(1), [])).toBe("OK");
  });
});

describe("callers without TLS", () => {
  test("one that does not name itself, or with no node ID, is UNAUTHENTICATED", async () => {
    const at = await cluster();
    const request = { nodeId: "a", status: statusBytes("192.0.2.1") };
    expect(await codeOf(at.client().updateNodeStatus(request))).toBe("UNAUTHENTICATED");
    expect(await codeOf(at.client("a b").updateNodeStatus(request))).toBe("UNAUTHENTICATED");
    expect(await codeOf(at.client("a/b").updateNodeStatus(request))).toBe("UNAUTHENTICATED");
    expect(await new Stream(at.client()).end()).toBe("UNAUTHENTICATED");
  });

  test("everybody is told the leader, which is this Curator, and the stream stays open", async () => {
    const at = await cluster();
    const abort = new AbortController();
    const answers = at.local().getCurrentLeader({}, { signal: abort.signal })[Symbol.asyncIterator]();
    const first = await answers.next();
    expect(first.value).toEqual({
      leaderNodeId: "clusternet-curator",
      leaderHost: "127.0.0.1",
      leaderPort: at.server.port,
      thisNodeId: "clusternet-curator",
    });
    abort.abort();
    await answers.next().catch(() => undefined);
  });
});

describe("an announcement is refused beyond what the real Curator refuses", () => {
  test.each([
    {
      name: "for a prefix inside another node's, naming the owner and the way out",
      prefixes: ["10.192.1.128/25"],
      message:
        'Cannot use prefix 10.192.1.128/25: overlaps 10.192.1.0/24 of node "owner"; when that node is gone for good, take it out with: clusternet node remove owner',
    },
    {
      name: "for a prefix around another node's",
      prefixes: ["10.192.0.0/16"],
      message:
        'Cannot use prefix 10.192.0.0/16: overlaps 10.192.1.0/24 of node "owner"; when that node is gone for good, take it out with: clusternet node remove owner',
    },
    {
      name: "for the whole of either ClusterNet",
      prefixes: ["fd00:1::/48"],
      message: "Cannot use prefix fd00:1::/48: it is the whole ClusterNet",
    },
    {
      name: "for an IPv6 prefix outside",
      prefixes: ["fd00:2::/64"],
      message:
        "Cannot use prefix fd00:2::/64: expected inside 10.192.0.0/11 or inside fd00:1::/48 or 192.0.2.1/32",
    },
    {
      name: "for more than 1,024 prefixes",
      prefixes: Array.from({ length: 1025 }, () => "10.200.0.0/24"),
      message: "Cannot take announcement: 1025 prefixes, expected at most 1024",
    },
    {
      name: "for text that is meant for a terminal",
      prefixes: ["\u001b[2J\n[Peer]"],
      message: /^Cannot use prefix "\\u\{1b\}\[2J\\u\{a\}\[Peer\]": /,
    },
  ])("$name", async ({ prefixes, message }) => {
    const at = await cluster({ clusterNets: ["10.192.0.0/11", "fd00:1::/48"] });
    await at.report("owner", "192.0.2.1");
    await at.report("a", "192.0.2.1");
    expect(await at.announce("owner", keyOf(1), ["192.0.2.1/32", "10.192.1.0/24", "fd00:1:0:1::/64"])).toBe(
      "OK",
    );
    const call = at.client("a").updateNodeClusterNetworking({
      clusternet: { wireguardPubkey: keyOf(2), prefixes: prefixes.map((cidr) => ({ cidr })) },
    });
    const found = await refusalOf(call);
    if (typeof message === "string") expect(found).toBe(message);
    else expect(found).toMatch(message);
  });

  test("but takes IPv6 pod prefixes inside its ClusterNet, and one external address of two nodes", async () => {
    const at = await cluster({ clusterNets: ["10.192.0.0/11", "fd00:1::/48"] });
    await at.report("a", "192.0.2.1");
    await at.report("b", "192.0.2.1");
    expect(await at.announce("a", keyOf(1), ["192.0.2.1/32", "fd00:1:0:1::/64"])).toBe("OK");
    expect(await at.announce("b", keyOf(2), ["192.0.2.1/32", "fd00:1:0:2::/64"])).toBe("OK");
  });

  test("a public key that cannot be used is not repeated in the answer", async () => {
    const at = await cluster();
    await at.report("a", "192.0.2.1");
    const secret = "cGFzdGVkIGludG8gdGhlIHdyb25nIHBsYWNlISEhISE";
    const call = at.client("a").updateNodeClusterNetworking({
      clusternet: { wireguardPubkey: secret, prefixes: [] },
    });
    expect(await refusalOf(call)).not.toContain(secret);
  });

  test.each([
    ["that is no message", Uint8Array.of(0x0a, 200, 1), /is no message/],
    ["with an address that is no UTF-8", Uint8Array.of(0x0a, 1, 0xff), /is no message/],
    ["with a version that is no message", Uint8Array.of(0x22, 1, 0xff), /is no message/],
    ["of more than 16 KiB", new Uint8Array(16 * 1024 + 1), /has 16385 bytes, expected at most 16384/],
  ])("a status %s", async (_name, status, message) => {
    const at = await cluster();
    expect(await refusalOf(at.client("a").updateNodeStatus({ nodeId: "a", status }))).toMatch(message);
  });
});

test("a refusal is logged once, however often an agent tries again, and again after a success", async () => {
  const warnings: string[] = [];
  const at = await cluster({
    log: { debug() {}, info() {}, error() {}, warn: (message) => warnings.push(message) },
  });
  await at.report("a", "192.0.2.1");
  for (let index = 0; index < 5; index++) await at.announce("a", keyOf(1), ["10.0.0.0/8"]);
  expect(warnings.length).toBe(1);
  await at.announce("a", keyOf(1), ["10.1.0.0/16"]);
  expect(warnings.length).toBe(2);
  await at.announce("a", keyOf(1), []);
  await at.announce("a", keyOf(1), ["10.1.0.0/16"]);
  expect(warnings.length).toBe(3);
});

test.each([
  {
    what: "is refused for two things in turn",
    act: (at: TestCluster, turn: number) => at.announce("a", keyOf(1), [`10.${turn % 2}.0.0/16`]),
  },
  { what: "changes its key", act: (at: TestCluster, turn: number) => at.announce("a", keyOf(turn), []) },
  {
    what: "changes its prefixes",
    act: (at: TestCluster, turn: number) => at.announce("a", keyOf(1), [`10.192.${turn}.0/24`]),
  },
  {
    what: "changes its address",
    act: (at: TestCluster, turn: number) => at.report("a", `192.0.2.${turn + 1}`),
  },
])("a node that $what for ever has 20 lines a minute in the log, and others have theirs", async ({ act }) => {
  const lines: (string | undefined)[] = [];
  const note = (_message: string, fields: LogFields = {}): void => void lines.push(String(fields["node"]));
  const at = await cluster({ log: { debug() {}, error() {}, info: note, warn: note } });
  await at.report("a", "192.0.2.1");
  for (let turn = 0; turn < 50; turn++) await act(at, turn);
  expect(lines).toEqual(Array(20).fill("a"));
  await at.report("b", "192.0.2.99");
  await at.announce("b", keyOf(99), ["10.0.0.0/8"]);
  expect(lines.slice(20)).toEqual(["b", "b"]);
});

test("of a node that changes its key for ever the newest former ones are kept from others, over a restart too", async () => {
  const store = new MemoryStore();
  const first = await startCluster({ store });
  await first.report("a", "192.0.2.1");
  const changes = 2 * maxFormerKeys;
  for (let number = 0; number < changes; number++) {
    expect(await first.announce("a", keyOf(number), [])).toBe("OK");
    // One that comes back all the time is never an old one.
    expect(await first.announce("a", keyOf(9_999), [])).toBe("OK");
  }
  await first.stop();
  const at = await cluster({ store });
  await at.report("a", "192.0.2.1");
  await at.report("b", "192.0.2.2");
  expect(await at.announce("a", keyOf(changes), [])).toBe("OK");
  const oldest = changes - maxFormerKeys;
  const answers = [0, oldest, oldest + 1, changes - 1, changes, 9_999].map(
    async (number) => [number, await at.announce("b", keyOf(number), [])] as const,
  );
  expect(await Promise.all(answers)).toEqual([
    [0, "OK"],
    [oldest, "OK"],
    [oldest + 1, "INVALID_ARGUMENT"],
    [changes - 1, "INVALID_ARGUMENT"],
    [changes, "INVALID_ARGUMENT"],
    [9_999, "INVALID_ARGUMENT"],
  ]);
  expect(store.load().keys.size).toBe(1 + maxFormerKeys + 2);
});

test("a store that is found in its place is not taken for one that can be written again", async () => {
  const disk = { isFull: true };
  const store = storeOn(disk);
  const lines: string[] = [];
  const note = (message: string): void => void lines.push(message);
  const at = await cluster({ store, log: { debug() {}, info: note, warn: note, error: note } });
  const about = (): readonly string[] => lines.filter((line) => /disk full|stored again/.test(line));
  for (let round = 0; round < 3; round++) {
    expect(await at.report("a", "192.0.2.1")).toBe("UNAVAILABLE");
    at.server.registry.ensureKept();
  }
  expect(about()).toEqual(["disk full"]);
  disk.isFull = false;
  expect(await at.report("a", "192.0.2.1")).toBe("OK");
  expect(about()).toEqual(["disk full", "Changes can be stored again"]);
});

test("a store that cannot be written: UNAVAILABLE, nothing changed, no event, and all well afterwards", async () => {
  const disk = { isFull: false };
  const store = storeOn(disk);
  const errors: string[] = [];
  const at = await cluster({
    store,
    log: { debug() {}, info() {}, warn() {}, error: (message) => errors.push(message) },
  });
  await at.report("a", "192.0.2.1");
  await at.announce("a", keyOf(1), ["10.192.1.0/24"]);
  const watch = stream(at, "x");
  const picture = await watch.next();

  disk.isFull = true;
  expect(await at.announce("a", keyOf(2), ["10.192.2.0/24"])).toBe("UNAVAILABLE");
  expect(await at.report("b", "192.0.2.2")).toBe("UNAVAILABLE");
  expect(await at.server.registry.remove("a" as NodeId)).toMatchObject({ message: expect.any(String) });
  expect(errors).toEqual(["disk full"]);
  expect(await stream(at, "y").next()).toEqual(picture);

  disk.isFull = false;
  await at.report("b", "192.0.2.2");
  // Neither the key nor the prefix of the change that failed is taken.
  expect(await at.announce("b", keyOf(2), ["10.192.2.0/24"])).toBe("OK");
  expect(await at.announce("b", keyOf(1), [])).toBe("INVALID_ARGUMENT");
  expect((await watch.next()).nodes[0]?.id).toBe("b");
});

/** A store that keeps nothing while its disk is full. */
function storeOn(disk: { readonly isFull: boolean }): MemoryStore {
  const store = new MemoryStore();
  const commit = store.commit.bind(store);
  store.commit = (changes) => {
    if (disk.isFull) throw new Error("disk full");
    return commit(changes);
  };
  return store;
}

function storedNode(id: string, number: number): StoredNode {
  return {
    id: id as NodeId,
    externalAddress: "192.0.2.1",
    reportedAtMs: number,
    status: statusBytes("192.0.2.1"),
    publicKey: keyOf(number),
    prefixes: [],
  };
}

describe("a slow watcher", () => {
  test("costs one event a node however many changes it misses, and shares their bytes", () => {
    const fanOut = new FanOut([]);
    const slow = fanOut.open("x" as NodeId, undefined);
    const slower = fanOut.open("y" as NodeId, undefined);
    for (let number = 0; number < 10_000; number++) fanOut.publish(storedNode(`n${number % 5}`, number));
    fanOut.retract("n0" as NodeId, unavailable("gone"));
    expect([slow.waiting, slower.waiting]).toEqual([6, 6]);
    const last: SeenEvent[] = [];
    for (;;) {
      const event = slow.next();
      if (event === undefined) break;
      if (!(event instanceof Uint8Array)) throw new Error(event.message);
      expect(slower.next()).toBe(event);
      last.push(seenEvent(WatchEvent.decode(event)));
    }
    expect(
      last.map(({ nodes, tombstones }) => [...nodes.map((each) => each.publicKey), ...tombstones]),
    ).toEqual([[], ["n0"], [keyOf(9996)], [keyOf(9997)], [keyOf(9998)], [keyOf(9999)]]);
  });

  test("a node that changes all the time does not lose its turn", () => {
    const fanOut = new FanOut([]);
    const watcher = fanOut.open("x" as NodeId, undefined);
    watcher.next();
    fanOut.publish(storedNode("busy", 1));
    for (let number = 2; number < 50; number++) {
      fanOut.publish(storedNode(`n${number}`, number));
      fanOut.publish(storedNode("busy", 100 + number));
    }
    const event = watcher.next();
    expect(event instanceof Uint8Array && seenEvent(WatchEvent.decode(event)).nodes[0]?.publicKey).toBe(
      keyOf(149),
    );
  });

  test("that does not read for thousands of changes gets the last state of each node in the end", async () => {
    const at = await cluster();
    const watch = at.client("slow").watch({ kind: { $case: "nodesInCluster", nodesInCluster: {} } });
    const events = watch[Symbol.asyncIterator]();
    cleanups.push(() => events.return?.());
    await events.next();
    // Unknown fields of a status are kept: they make an event large at little cost.
    const padding = Buffer.concat([Uint8Array.of(0xfa, 0x01, 0x80, 0x60), new Uint8Array(0x3000)]);
    const changes = 4_000;
    for (let change = 0; change < changes; change += 50) {
      const status = Buffer.concat([statusBytes(`192.0.2.${1 + (change % 200)}`), padding]);
      await Promise.all(
        Array.from({ length: 50 }, (_, index) => {
          const nodeId = `n${index % 4}`;
          return at.client(nodeId).updateNodeStatus({ nodeId, status });
        }),
      );
    }
    await at.report("end", "192.0.2.250");
    let received = 0;
    const seen = new Map<string, SeenEvent["nodes"][number]>();
    while (!seen.has("end")) {
      const { value } = await events.next();
      received++;
      for (const each of seenEvent(value).nodes) seen.set(each.id, each);
    }
    // What lies in the buffers of the connection comes singly; the rest was merged.
    expect(received).toBeLessThan(changes / 4);
    const shown = Object.fromEntries([...seen.values()].map((each) => [each.id, each.externalAddress]));
    const wanted = at.server.registry.nodes.map((each) => [each.id, each.externalAddress]);
    expect(shown).toEqual(Object.fromEntries(wanted));
  }, 30_000);
});

test("a watcher that is gone without a word is let go", async () => {
  const at = await cluster({ keepalive: { timeMs: 100, timeoutMs: 200 } });
  // A relay that can fall silent: no FIN reaches the Curator, as when a host dies.
  const sockets: Socket[] = [];
  const relay = createServer((near) => {
    const far = connect(at.server.port, "127.0.0.1");
    sockets.push(near, far);
    near.pipe(far).pipe(near);
    for (const socket of [near, far]) socket.on("error", () => undefined);
  });
  await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    for (const socket of sockets) socket.destroy();
    relay.close();
  });
  const address = relay.address();
  if (address === null || typeof address === "string") throw new Error("the relay has no port");
  const channel = createChannel(`127.0.0.1:${address.port}`);
  cleanups.push(() => channel.close());
  const watch = new Stream(clientOf(channel, "a"));
  await watch.next();
  expect(at.server.registry.fanOut.watchers).toBe(1);
  for (const socket of sockets) {
    socket.unpipe();
    socket.pause();
  }
  await waitFor(() => at.server.registry.fanOut.watchers === 0, {
    limitMs: 4_000,
    what: "the silent watch to be dropped",
  });
});

test("a node may have so many streams and no more, and another node as many again", async () => {
  const at = await cluster();
  const open = async (caller: string): Promise<Stream> => {
    const opened = stream(at, caller);
    await opened.next();
    return opened;
  };
  const ofA: Stream[] = [];
  for (let count = 0; count < maxWatchesOfCaller; count++) ofA.push(await open("a"));
  expect(await stream(at, "a").end()).toBe("RESOURCE_EXHAUSTED");
  expect(await stream(at, "a", "b").end()).toBe("RESOURCE_EXHAUSTED");
  await open("b");
  expect(at.server.registry.fanOut.watchers).toBe(maxWatchesOfCaller + 1);

  // Those that are there go on, and one that is closed makes room.
  await at.report("c", "192.0.2.3");
  expect((await ofA[0]?.next())?.nodes).toEqual([plain("c", "192.0.2.3")]);
  const [first, second] = ofA;
  const ended = first?.next().catch(() => undefined);
  first?.close();
  await ended;
  const left = (): number => at.server.registry.fanOut.watchersOf("a" as NodeId);
  await waitFor(() => left() === maxWatchesOfCaller - 1, "room for one more");
  await open("a");
  expect(await stream(at, "a").end()).toBe("RESOURCE_EXHAUSTED");

  // A node that is taken out loses all of them at once.
  await at.report("a", "192.0.2.1");
  await at.server.registry.remove("a" as NodeId);
  expect(await second?.end()).toBe("NOT_FOUND");
  await waitFor(() => left() === 0, "no stream of a node that was removed");
});

test("a client that closes is let go", async () => {
  const at = await cluster();
  const watch = new Stream(at.client("a"));
  await watch.next();
  const next = watch.next().catch(() => undefined);
  watch.close();
  await next;
  await waitFor(() => at.server.registry.fanOut.watchers === 0, "the closed watch to be dropped");
});

describe("whatever happens in whatever order, every watcher ends with the registry's nodes", () => {
  const anyStep = fc.oneof(
    fc.record({ verb: fc.constant("report"), node: fc.nat(4), value: fc.integer({ min: 1, max: 9 }) }),
    fc.record({ verb: fc.constant("announce"), node: fc.nat(4), value: fc.nat(12) }),
    fc.record({ verb: fc.constantFrom("remove", "allow"), node: fc.nat(4), value: fc.constant(0) }),
    fc.record({ verb: fc.constantFrom("open", "read"), node: fc.nat(3), value: fc.nat(3) }),
  );

  test("without the network, any reading speed", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(anyStep, { maxLength: 80 }), async (steps) => {
        const { Registry } = await import("../../src/curator-server/registry.ts");
        const { parsePrefix } = await import("../../src/core/prefix.ts");
        const registry = new Registry({
          store: new MemoryStore(),
          clusterNets: [parsePrefix("10.192.0.0/11")],
          log: { debug() {}, info() {}, warn() {}, error() {} },
          now: () => 1,
        });
        const watchers: { watcher: ReturnType<FanOut["open"]>; seen: Map<string, unknown>; lasts: number }[] =
          [];
        const read = (each: (typeof watchers)[number]): boolean => {
          const event = each.watcher.next();
          if (!(event instanceof Uint8Array)) return false;
          const { nodes, tombstones, last } = seenEvent(WatchEvent.decode(event));
          for (const node of nodes) each.seen.set(node.id, node);
          for (const id of tombstones) each.seen.delete(id);
          if (last) each.lasts++;
          return true;
        };
        const underWay: Promise<unknown>[] = [];
        for (const { verb, node, value } of steps) {
          const id = `n${node}` as NodeId;
          if (verb === "report") {
            underWay.push(registry.reportStatus(id, { nodeId: id, status: statusBytes(`192.0.2.${value}`) }));
          } else if (verb === "announce") {
            const prefixes = [{ cidr: `10.192.${value}.0/24` }];
            underWay.push(
              registry.announce(id, { wireguardPubkey: keyOf(node * 2 + (value % 2)), prefixes }),
            );
          } else if (verb === "remove") underWay.push(registry.remove(id));
          else if (verb === "allow") underWay.push(registry.allow(id));
          else if (verb === "open") {
            watchers.push({
              watcher: registry.fanOut.open("x" as NodeId, undefined),
              seen: new Map(),
              lasts: 0,
            });
          } else {
            // Requests that are under way at the same time are judged in one turn; reading lets them end first.
            if (value === 0) await Promise.all(underWay.splice(0));
            const watcher = watchers[node];
            if (watcher !== undefined) read(watcher);
          }
        }
        await Promise.all(underWay);
        const wanted = registry.nodes.map(({ id, externalAddress, publicKey, prefixes }) => ({
          id,
          externalAddress,
          publicKey,
          prefixes,
        }));
        for (const each of watchers) {
          while (read(each)) {
            // Everything that waits.
          }
          const seen = [...each.seen.entries()]
            .toSorted(([a], [b]) => (a < b ? -1 : 1))
            .map(([, node]) => node);
          expect(seen).toEqual(wanted as unknown[]);
          expect(each.lasts).toBe(1);
        }
      }),
      { numRuns: 150 },
    );
  }, 30_000);
});
