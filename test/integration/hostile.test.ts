/**
 * What other nodes and a Curator may send: it costs the node that sent it, is reported with its text escaped, and
 * gets neither into the file, the log and the status nor at the rest of the mesh.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import { event, node } from "../fakes/curator.ts";
import { executable } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import { Lab } from "../lab/lab.ts";
import { freshMachine, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** Key, allowed IPs and endpoint of every peer, by key. */
async function peersOf(
  stage: Stage,
  count: number,
): Promise<Map<string, { allowed: string; endpoint: string }>> {
  const peers = await stage.agent.peers((found) => found.length === count, soonMs);
  return new Map(peers.map(([key = "", , endpoint = "", allowed = ""]) => [key, { allowed, endpoint }]));
}

/** A stage whose Curator has a stream to send on. */
async function watchedStage(): Promise<Stage> {
  const stage = await Stage.create(lab);
  await stage.agent.status(({ curator }) => curator.fullPicture, soonMs);
  return stage;
}

async function statusText(stage: Stage): Promise<string> {
  return await stage.agent.machine.exec([executable, "status", "--data-dir", stage.agent.dataDirectory]);
}

describe("what another node announces", () => {
  test("of wide, foreign and broken prefixes only the good one is applied, each other is reported as received (case 10)", async () => {
    await using stage = await watchedStage();
    const { publicKey } = newKey();
    const bad = [
      "0.0.0.0/0",
      "10.0.0.0/8",
      "192.0.2.77/32",
      "10.192.5.1/24",
      "10.192.6.0/33",
      "",
      "10.192.7.0/24\n[Peer]\u001B[31m",
    ];
    await stage.curator.call.put(
      node({ id: "b", key: publicKey, address: "192.0.2.200", prefixes: [...bad, "10.192.2.0/24"] }),
    );
    expect([...(await peersOf(stage, 1))]).toEqual([
      [publicKey, { allowed: "10.192.2.0/24", endpoint: "192.0.2.200:7838" }],
    ]);
    const status = await stage.agent.status(({ problems }) => problems.length >= bad.length, soonMs);
    const shown = status.problems.map(
      ({ kind, nodeId, message }) =>
        `${kind} ${nodeId} ${/"(?:[^"\\]|\\.)*"/.exec(message.replace('"b"', ""))?.[0]}`,
    );
    expect(shown.toSorted()).toEqual([
      'prefix-malformed b ""',
      'prefix-malformed b "10.192.5.1/24"',
      'prefix-malformed b "10.192.6.0/33"',
      String.raw`prefix-malformed b "10.192.7.0/24\u{a}[Peer]\u{1b}[31m"`,
      'prefix-outside b "192.0.2.77/32"',
      'prefix-too-wide b "0.0.0.0/0"',
      'prefix-too-wide b "10.0.0.0/8"',
    ]);
  });

  test("of 100 nodes the five bad ones cost themselves only, and no name is looked up (case 14)", async () => {
    await using stage = await watchedStage();
    const { machine } = stage.agent;
    // A resolver that is reachable, so that a query would leave, and a counter for it.
    const resolver = join(await lab.directory(), "resolv.conf");
    await writeFile(resolver, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n");
    await machine.exec(["mount", "--bind", resolver, "/etc/resolv.conf"]);
    await machine.exec(["nft", "-f", "-"], {
      stdin:
        "table inet dns {\nchain out {\ntype filter hook output priority 0;\nudp dport 53 counter\n}\n}\n",
    });
    const queries = async (): Promise<number> =>
      Number(/counter packets (\d+)/.exec(await machine.exec(["nft", "list", "table", "inet", "dns"]))?.[1]);

    const good = Array.from({ length: 95 }, (_, index) =>
      paperNode(`n${index}`, `198.51.100.${index + 1}`, [`10.200.${index}.0/24`]),
    );
    const keys = { resolved: newKey().publicKey, prefix: newKey().publicKey, status: newKey().publicKey };
    const started = performance.now();
    await stage.curator.call.push(
      event({
        nodes: [
          node({ id: "bad-key", key: "AAAA", address: "198.51.100.201", prefixes: ["10.201.1.0/24"] }),
          node({ id: "bad-name", key: keys.resolved, address: "nx.invalid", prefixes: ["10.201.2.0/24"] }),
          node({
            id: "bad-prefix",
            key: keys.prefix,
            address: "198.51.100.203",
            prefixes: ["10.201.3.0/33", "10.201.4.0/24"],
          }),
          node({ id: "no-status", key: keys.status, prefixes: ["10.201.5.0/24"] }),
          node({ id: "no-clusternet", address: "198.51.100.205" }),
          ...good.map(({ bytes }) => bytes),
        ],
      }),
    );
    const peers = await peersOf(stage, 98);
    expect(performance.now() - started).toBeLessThan(2_000);
    expect(peers.get(keys.resolved)).toEqual({ allowed: "10.201.2.0/24", endpoint: "(none)" });
    expect(peers.get(keys.prefix)).toEqual({ allowed: "10.201.4.0/24", endpoint: "198.51.100.203:7838" });
    expect(peers.get(keys.status)).toEqual({ allowed: "10.201.5.0/24", endpoint: "(none)" });
    const whole = ({ key, allowed }: (typeof good)[number]): boolean =>
      peers.get(key)?.allowed.split(",").toSorted().join(",") === allowed[1].split(",").toSorted().join(",");
    expect(good.filter(whole).length).toBe(95);
    expect((await stage.problems((found) => found.length >= 4)).toSorted()).toEqual([
      "address-invalid bad-name",
      "address-missing no-status",
      "key-invalid bad-key",
      "prefix-malformed bad-prefix",
    ]);
    await stage.resyncs(2);
    expect(await queries()).toBe(0);
    // The counter would have seen it.
    await machine.run(["getent", "hosts", "nx.invalid"]);
    expect(await queries()).toBeGreaterThan(0);
  });

  test("an address inside ClusterNet is no endpoint, and packets for it do not go round (case 18)", async () => {
    await using stage = await watchedStage();
    const c = await stage.peer("c", 3);
    const { publicKey } = newKey();
    await stage.curator.call.put(
      node({ id: "b", key: publicKey, address: "10.192.9.9", prefixes: ["10.192.9.0/24"] }),
    );
    expect((await peersOf(stage, 2)).get(publicKey)).toEqual({
      allowed: "10.192.9.0/24",
      endpoint: "(none)",
    });
    expect(await stage.problems((found) => found.length > 0)).toEqual(["address-invalid b"]);
    const sentBytes = async (): Promise<number> => {
      const shown = await stage.agent.machine.exec(["ip", "-j", "-s", "link", "show", "clusternet"]);
      return JSON.parse(shown)[0].stats64.tx.bytes;
    };
    const before = await sentBytes();
    const ping = stage.agent.machine.ping("10.192.9.9");
    const others = stage.agent.machine.ping(c.target);
    await ping.sent(200, soonMs);
    expect(await others.stop()).toMatchObject({ lost: 0 });
    expect(await ping.stop()).toMatchObject({ received: 0 });
    // 200 pings each of 84 bytes, and their headers; one that went round would be there a thousand times.
    expect((await sentBytes()) - before).toBeLessThan(400_000);
  });

  test("an own address inside ClusterNet ends the start with 78 (case 18)", async () => {
    const machine = await freshMachine(lab, "own");
    const directory = join(await lab.directory(), "a");
    const argv = ["--insecure", "--curator", "127.0.0.1:1", "--node-id", "a", "--data-dir", directory];
    const result = await machine.run([executable, "run", ...argv, "--external-address", "10.192.1.1"]);
    expect(result.code).toBe(78);
    expect(result.stderr).toContain("10.192.1.1");
  });

  test("an ID with line breaks, terminal escapes or a section in it gets nowhere", async () => {
    await using stage = await watchedStage();
    const stolen = newKey();
    const ids = [
      `b\n[Peer]\nPublicKey = ${stolen.publicKey}`,
      "b\r[Peer]",
      "\u001B[2J\u001B]0;title\u0007",
      "evil [Peer]",
      "",
      "x".repeat(254),
      "b\u0000c",
      "b\u202Ec",
    ];
    const bad = ids.map((id, index) =>
      node({
        id,
        key: newKey().publicKey,
        address: `198.51.100.${index + 1}`,
        prefixes: [`10.200.${index}.0/24`],
      }),
    );
    // Nothing is wrong with this one: brackets are printable.
    const good = paperNode("[Peer]", "198.51.100.100", ["10.200.100.0/24"]);
    await stage.curator.call.push(event({ nodes: [...bad, good.bytes] }));
    await stage.holds([good.allowed]);
    const status = await stage.agent.status(
      ({ problems, peers }) => problems.length >= ids.length && peers.every(({ id }) => id !== null),
      soonMs,
    );
    expect(status.problems.map(({ kind }) => kind)).toEqual(ids.map(() => "node-id"));
    expect(status.peers.map(({ id }) => id)).toEqual(["[Peer]"]);

    const file = await waitFor(
      async () => {
        const text = await readFile(stage.file, "utf8");
        return text.includes(good.key) && text;
      },
      { limitMs: soonMs, what: "the peer in the file" },
    );
    expect(parseWgConfig(file).nodes.map(({ id }) => String(id))).toEqual(["[Peer]"]);
    expect(file.match(/^\[Peer\]$/gm)).toHaveLength(1);
    const texts = [file, await statusText(stage), stage.agent.process.stderr, JSON.stringify(status)];
    for (const text of texts) {
      // oxlint-disable-next-line no-control-regex -- that is what is looked for
      expect(text).not.toMatch(/[\u0000-\u0008\u000B-\u001F\u007F\u202E]/);
      expect(text).not.toContain(`\nPublicKey = ${stolen.publicKey}`);
    }
    const lines = stage.agent.process.stderr.trimEnd().split("\n");
    expect(lines.filter((line) => !/^\d{4}-\d\d-\d\dT\S+ (debug|info|warn|error) /i.test(line))).toEqual([]);
  });
});

describe("what a Curator sends", () => {
  test("events of 4.3 MB and of 20 MB are taken, and the stream lives on (case 37)", async () => {
    await using stage = await watchedStage();
    const held = paperNode("held", "198.51.100.1", ["10.200.1.0/24"]);
    const medium = paperNode("medium", "198.51.100.2", ["10.200.2.0/24"]);
    const large = paperNode("large", "198.51.100.3", ["10.200.3.0/24"]);
    await stage.curator.call.put(held.bytes);
    await stage.holds([held.allowed]);
    await stage.curator.call.push(event({ nodes: [medium.bytes] }), { ballast: 4_300_000 });
    await stage.holds([held.allowed, medium.allowed]);
    await stage.curator.call.push(event({ nodes: [large.bytes] }), { ballast: 20_000_000 });
    await stage.holds([held.allowed, medium.allowed, large.allowed]);
    expect((await stage.curator.call.seen()).streams.map(({ open }) => open)).toEqual([true]);
    expect(await stage.problems(() => true)).toEqual([]);
  });

  test("an event that is too large is one clear problem with backoff, and the mesh stays (case 37)", async () => {
    await using stage = await watchedStage();
    const held = paperNode("held", "198.51.100.1", ["10.200.1.0/24"]);
    await stage.curator.call.put(held.bytes);
    await stage.holds([held.allowed]);
    await stage.curator.call.push(event({ nodes: [] }), { ballast: 65 * 1024 * 1024 });
    expect(await stage.problems((found) => found.length > 0)).toEqual(["event-too-large -"]);
    await stage.resyncs(2);
    expect((await stage.curator.call.seen()).streams.length).toBeLessThan(6);
    await stage.holds([held.allowed]);
    // A stream that brings what can be taken ends the problem.
    await stage.problems((found) => found.length === 0);
  });

  test("bytes that are no event end the stream, without a tight loop, and the mesh stays (case 37)", async () => {
    await using stage = await watchedStage();
    const held = paperNode("held", "198.51.100.1", ["10.200.1.0/24"]);
    await stage.curator.call.put(held.bytes);
    await stage.holds([held.allowed]);
    await stage.curator.call.push(Uint8Array.of(0x0a, 0xff, 0xff, 0xff, 0x7f, 1));
    await waitFor(async () => (await stage.curator.call.seen()).streams.length > 1, {
      limitMs: soonMs,
      what: "another stream",
      detail: () => stage.agent.process.describe(),
    });
    await stage.resyncs(1);
    expect((await stage.curator.call.seen()).streams.length).toBeLessThan(4);
    await stage.holds([held.allowed]);
  });
});
