/**
 * The rules of the mesh, through the compiled executable on real WireGuard: who is a peer, with which key, prefixes
 * and endpoint, and what may be removed. The Curator is scripted, so that every case is said event by event.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile, stat } from "node:fs/promises";
import { event, node } from "../fakes/curator.ts";
import type { RemoteCurator } from "../fakes/remote-curator.ts";
import { Agent } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import { Lab } from "../lab/lab.ts";
import { finishPing, freshMachine, nothingLost, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { shuffleMessage, shuffled } from "../lab/wire-order.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

describe("endpoints", () => {
  test("an endpoint that roamed is left alone (case 1)", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2, { listenPort: 40_000, keepaliveSeconds: 1 });
    const endpoint = `${b.machine.address}:40000`;
    await stage.agent.peers(([peer]) => peer?.[2] === endpoint, soonMs);
    await stage.recorder.clear();
    const ping = stage.agent.machine.ping(b.target);
    await stage.resyncs(3);
    expect(await finishPing(ping)).toEqual(nothingLost);
    expect(await stage.recorder.changes()).toEqual([]);
    expect((await stage.agent.peers(() => true, soonMs)).map((peer) => peer[2])).toEqual([endpoint]);
  });

  test("IPv6 addresses become endpoints in brackets and single hosts, however they are written (case 16)", async () => {
    await using stage = await Stage.create(lab);
    const b = paperNode("b", "2001:db8::ff02", []);
    await stage.curator.call.put(b.bytes);
    const [peer] = await stage.agent.peers((peers) => peers.length === 1, soonMs);
    expect(peer?.slice(0, 4)).toEqual([b.key, "(none)", "[2001:db8::ff02]:7838", "2001:db8::ff02/128"]);

    const machine = await freshMachine(lab, "v6");
    const forms = [
      machine.address6,
      machine.address6.toUpperCase(),
      machine.address6.replace("::", ":0:0:0:0:0:"),
    ];
    for (const externalAddress of forms) {
      const options = { curator: stage.curator.address, directory: stage.directory, nodeId: "six" };
      const other = await Agent.start(machine, { ...options, externalAddress });
      const { node: six } = await other.status((status) => status.node.announcedAt !== null, soonMs);
      await other.process.stop();
      expect(six.announced).toEqual([`${machine.address6}/128`]);
    }
  });
});

describe("keys", () => {
  test("a node rebuilt with another key while the agent was stopped is one peer, the new one (case 5)", async () => {
    await using stage = await Stage.create(lab);
    const before = paperNode("b", "198.51.100.2", ["10.192.2.0/24"]);
    const c = paperNode("c", "198.51.100.3", ["10.192.3.0/24"]);
    await stage.curator.call.put(before.bytes);
    await stage.curator.call.put(c.bytes);
    await stage.holds([before.allowed, c.allowed]);
    await stage.agent.process.stop();

    const after = paperNode("b", "198.51.100.2", ["10.192.2.0/24"]);
    await stage.curator.call.put(after.bytes);
    stage.agent = await stage.agent.restart();
    await stage.holds([after.allowed, c.allowed]);
    const file = await readFile(stage.file, "utf8");
    expect([file.includes(after.key), file.includes(before.key), file.match(/\[Peer\]/g)?.length]).toEqual([
      true,
      false,
      2,
    ]);
  });

  test("a key changed in a live event takes endpoint and all prefixes along, and no packet of another peer (case 6)", async () => {
    await using stage = await Stage.create(lab);
    const prefixes = ["10.192.2.0/24", "10.192.20.0/24", "10.192.21.0/28"];
    const before = paperNode("b", "198.51.100.2", prefixes);
    await stage.curator.call.put(before.bytes);
    const c = await stage.peer("c", 3);
    await stage.holds([before.allowed, c.allowed]);

    const ping = stage.agent.machine.ping(c.target);
    await ping.sent(50, soonMs);
    const after = paperNode("b", "198.51.100.2", prefixes);
    await stage.curator.call.put(after.bytes);
    await stage.holds([after.allowed, c.allowed]);
    const peers = await stage.agent.peers(() => true, soonMs);
    expect(peers.find(([key]) => key === after.key)?.[2]).toBe("198.51.100.2:7838");
    expect(await finishPing(ping)).toEqual(nothingLost);
  });

  test("a node that announces another one's key harms nobody and gets nothing (case 8)", async () => {
    await using stage = await Stage.create(lab);
    const b = await stage.peer("b", 2);
    await stage.recorder.clear();
    const ping = stage.agent.machine.ping(b.target);
    // Its ID is the smaller one: among newcomers it would win.
    await stage.curator.call.put(paperNode("a-c", "198.51.100.3", ["10.192.3.0/24"], b.publicKey).bytes);
    expect(await stage.problems((problems) => problems.length > 0)).toEqual(["key-taken a-c"]);
    await stage.resyncs(1);
    await stage.holds([b.allowed]);
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await finishPing(ping)).toEqual(nothingLost);
  });
});

describe("disputed prefixes", () => {
  const numbers = Array.from({ length: 50 }, (_, at) => at + 1);
  const others = numbers.map((number) =>
    paperNode(`node-${number}`, `198.51.100.${number}`, [`10.193.${number}.0/24`]),
  );
  const greed = {
    "one /16 around them": ["10.193.0.0/16"],
    "a /32 inside each of theirs": numbers.map((number) => `10.193.${number}.7/32`),
  };
  const tooWide = ["10.192.0.0/11", "10.192.0.0/12"];

  test.each(
    Object.entries(greed).flatMap(([name, prefixes]) => [
      { name, prefixes, how: "in one event", style: {} },
      { name, prefixes, how: "cut into events", style: { nodesPerEvent: 10, pauseMs: 250 } },
    ]),
  )(
    "a node that claims $name loses to fifty nodes, the backlog $how (case 11)",
    async ({ prefixes, style }) => {
      const zero = paperNode("0", "198.51.100.100", [...prefixes, ...tooWide]);
      await using stage = await Stage.create(lab, {
        async prepare(curator) {
          await curator.call.backlog(zero.bytes, node({ id: "a" }), ...others.map(({ bytes }) => bytes));
          await curator.call.style(style);
        },
      });
      await stage.holds([[zero.key, "198.51.100.100/32"], ...others.map(({ allowed }) => allowed)]);
      const problems = await stage.problems((found) => found.length > 0);
      expect(new Set(problems)).toEqual(new Set(["prefix-taken 0", "prefix-too-wide 0"]));
      expect(problems.filter((each) => each === "prefix-too-wide 0")).toHaveLength(2);
      // As many as are kept of one node, less the two above.
      expect(problems.filter((each) => each === "prefix-taken 0")).toHaveLength(
        Math.min(prefixes.length, 14),
      );
    },
  );

  test("a prefix that two nodes claim stays where it is, however often both say it (case 12)", async () => {
    await using stage = await Stage.create(lab);
    const b = paperNode("b", "198.51.100.2", ["10.192.4.0/24"]);
    const c = paperNode("c", "198.51.100.3", ["10.192.4.0/24"]);
    // Node c was there first; among newcomers b would win.
    const mesh = [c.allowed, [b.key, "198.51.100.2/32"]] as const;
    await stage.curator.call.put(c.bytes);
    await stage.holds([c.allowed]);
    await stage.curator.call.put(b.bytes);
    await stage.holds(mesh);
    await stage.recorder.clear();
    for (let sent = 0; sent < 200; sent++) {
      await stage.curator.call.put(Math.random() < 0.5 ? b.bytes : c.bytes);
    }
    await stage.caughtUp();
    await stage.holds(mesh);
    expect(await stage.recorder.changes()).toEqual([]);
    expect(await stage.problems(() => true)).toEqual(["prefix-taken b"]);
    const logged = stage.agent.process.lines.filter(({ text }) => text.includes("prefix-taken"));
    expect(logged.map(({ text }) => text.includes("No longer"))).toEqual([false]);
  });
});

describe("what changes nothing", () => {
  test("an event repeated in other orders of fields and prefixes is no command, no write, no announcement (case 39)", async () => {
    await using stage = await Stage.create(lab);
    const prefixes = ["10.192.2.0/24", "10.192.20.0/24", "10.192.21.0/28", "198.51.100.2/32"];
    const key = newKey().publicKey;
    const b = (): Uint8Array =>
      node({ id: "b", key, address: "198.51.100.2", prefixes: shuffled(prefixes), seconds: 1_800_000_000 });
    await stage.curator.call.put(b());
    await stage.holds([[key, prefixes.join(",")]]);
    const { announcements } = await stage.curator.call.seen();
    const [{ key: ownKey, prefixes: ownPrefixes } = { key: "", prefixes: [] }] = announcements;
    const self = (prefixes = shuffled(ownPrefixes)): Uint8Array => node({ id: "a", key: ownKey, prefixes });
    const fileBefore = await stat(stage.file, { bigint: true });
    await stage.recorder.clear();

    for (let sent = 0; sent < 1_000; sent++) {
      const nodes = shuffled([b(), self()]).map((each) => shuffleMessage(each));
      await stage.curator.call.push(shuffleMessage(event({ nodes })));
    }
    await stage.curator.call.push(event({ nodes: [self([...ownPrefixes].toReversed())] }));
    await stage.caughtUp();
    expect(await stage.recorder.changes()).toEqual([]);
    const fileAfter = await stat(stage.file, { bigint: true });
    expect([fileAfter.ino, fileAfter.mtimeNs]).toEqual([fileBefore.ino, fileBefore.mtimeNs]);
    expect((await stage.curator.call.seen()).announcements).toEqual(announcements);
  });

  test("the file gives a fresh interface the same peers as the running one", async () => {
    await using stage = await Stage.create(lab);
    const nodes = [
      paperNode("b", "198.51.100.2", ["10.192.2.0/24", "10.192.20.0/24"]),
      paperNode("c", "2001:db8::ff03", ["fd10:c1:0:3::/64", "10.192.3.0/24"]),
      paperNode("d", "198.51.100.4", []),
    ];
    for (const { bytes } of nodes) await stage.curator.call.put(bytes);
    await stage.curator.call.put(node({ id: "e", key: newKey().publicKey, prefixes: ["10.192.5.0/24"] }));
    const running = await stage.agent.peers((peers) => peers.length === 4, soonMs);

    const fresh = await freshMachine(lab, "fresh");
    await fresh.exec(["wireguard-go", "wg0"]);
    await fresh.exec(["wg", "setconf", "wg0", stage.file]);
    const dump = await fresh.exec(["wg", "show", "wg0", "dump"]);
    const [own, ...peers] = dump.split("\n").slice(0, -1);
    expect(peers.map(comparable).toSorted()).toEqual(
      running.map((peer) => comparable(peer.join("\t"))).toSorted(),
    );
    const runningOwn = (await stage.agent.machine.exec(["wg", "show", "clusternet", "dump"])).split("\n")[0];
    expect(own === runningOwn).toBe(true);
  });
});

describe("pictures", () => {
  test("a node that was removed while the Curator was away goes with the full picture, and not before", async () => {
    await using stage = await Stage.create(lab);
    const [gone, ...stay] = named(3);
    await putAll(stage.curator, [...(gone === undefined ? [] : [gone]), ...stay]);
    await stage.agent.peers((peers) => peers.length === 3, soonMs);

    await stage.curator.call.pause();
    await stage.curator.call.forget("node-1");
    const added = paperNode("added", "198.51.100.200", ["10.192.200.0/24"]);
    await stage.curator.call.put(added.bytes);
    await stage.curator.call.style({ last: "hold" });
    await stage.curator.call.resume();
    // What is new comes with the backlog; what is not in it stays until it is known to be all.
    await stage.agent.peers((peers) => peers.length === 4, soonMs);
    await stage.resyncs(1);
    await stage.agent.peers((peers) => peers.length === 4, soonMs);
    await stage.curator.call.releaseLast();
    await stage.holds([...stay.map(({ allowed }) => allowed), added.allowed]);
    expect((await readFile(stage.file, "utf8")).includes(gone?.key ?? "")).toBe(false);
  });

  test("a full picture without this node removes nobody, until this node is in it", async () => {
    await using stage = await Stage.create(lab);
    const nodes = named(3);
    await putAll(stage.curator, nodes);
    await stage.agent.peers((peers) => peers.length === 3, soonMs);
    const self = await stage.curator.call.current("a");

    await stage.curator.call.pause();
    await stage.curator.call.reflect(false);
    await stage.curator.call.forget("a");
    await stage.curator.call.forget("node-1");
    await stage.curator.call.resume();
    expect(await stage.problems((found) => found.includes("picture-without-self -"), soonMs)).toContain(
      "picture-without-self -",
    );
    await stage.resyncs(1);
    await stage.agent.peers((peers) => peers.length === 3, soonMs);

    if (self === undefined) throw new Error("the Curator does not know the agent");
    await stage.curator.call.put(self);
    await stage.holds(nodes.slice(1).map(({ allowed }) => allowed));
    await stage.problems((found) => found.length === 0);
  });

  test("a Curator that lost most of its nodes does not empty the mesh", async () => {
    await using stage = await Stage.create(lab);
    const nodes = named(6);
    await putAll(stage.curator, nodes);
    await stage.agent.peers((peers) => peers.length === 6, soonMs);

    await stage.curator.call.pause();
    for (const number of [1, 2, 3, 4]) await stage.curator.call.forget(`node-${number}`);
    await stage.curator.call.resume();
    await stage.problems((found) => found.includes("picture-shrunk -"));
    await stage.curator.call.remove("node-5");
    await stage.holds(nodes.filter((_, at) => at !== 4).map(({ allowed }) => allowed));
    await stage.resyncs(1);
    await stage.holds(nodes.filter((_, at) => at !== 4).map(({ allowed }) => allowed));
  });

  test("a Curator that never says that the backlog is over makes a mesh, and is heeded in what it says", async () => {
    await using stage = await Stage.create(lab, {
      prepare: async (curator) => await curator.call.style({ last: "never" }),
    });
    const nodes = named(3);
    await putAll(stage.curator, nodes);
    await stage.holds(nodes.map(({ allowed }) => allowed));
    await stage.agent.status((status) => status.agent.ready, 10_000 + soonMs);

    await stage.curator.call.pause();
    await stage.curator.call.forget("node-1");
    await stage.curator.call.resume();
    await stage.streaming();
    await stage.curator.call.remove("node-2");
    await stage.caughtUp();
    // Deleted is what it says is deleted, and nothing else.
    await stage.holds([nodes[0], nodes[2]].flatMap((each) => (each === undefined ? [] : [each.allowed])));
  });
});

/** A peer of a dump as the file alone decides it: key, endpoint, allowed IPs in order, keepalive. */
function comparable(line: string): string {
  const [key, , endpoint, allowedIps, , , , keepalive] = line.split("\t");
  return [key, endpoint, allowedIps?.split(",").toSorted().join(","), keepalive].join(" ");
}

/** As many nodes that nobody runs. */
function named(count: number): readonly ReturnType<typeof paperNode>[] {
  return Array.from({ length: count }, (_, at) =>
    paperNode(`node-${at + 1}`, `198.51.100.${at + 1}`, [`10.192.${at + 100}.0/24`]),
  );
}

async function putAll(
  curator: RemoteCurator,
  nodes: readonly { readonly bytes: Uint8Array }[],
): Promise<void> {
  for (const { bytes } of nodes) await curator.call.put(bytes);
}
