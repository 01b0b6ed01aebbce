/**
 * What `ip` and `wg` print, read as it was recorded; and hints from what `ip monitor` prints.
 */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { CommandError } from "../../src/errors.ts";
import type { FollowCommand, RunCommand } from "../../src/host/command.ts";
import { followHints, hintOf } from "../../src/host/monitor.ts";
import {
  hasListener,
  parseIpLinks,
  parseIpRoutes,
  readHost,
  readRoutedNetworks,
} from "../../src/host/read.ts";
import { parseWgDump, WgDumpReader, type ReadDump, type WgDump } from "../../src/host/wg-dump.ts";
import type { PublicKey } from "../../src/core/key.ts";
import { parsePrefix } from "../../src/core/prefix.ts";
import { SeenPeers } from "../../src/core/seen-peers.ts";
import { silentLogger } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { waitFor } from "../lab/wait.ts";

const fixture = (name: string): Promise<string> =>
  readFile(join(import.meta.dir, "../fixtures/host", name), "utf8");

/** Key of 32 equal bytes, as in the recordings. */
function keyOf(byte: number): PublicKey {
  return new Uint8Array(32).fill(byte).toBase64() as PublicKey;
}

const ownPublicKey = "pOCSkrZRwni5dyxWn1+puxPZBrRqtoyd+dwrRAn4ogk=" as PublicKey;

test("parseIpLinks() reads links with kind, group, MTU, state and addresses", async () => {
  const links = parseIpLinks(await fixture("ip-address.json"));
  expect(links.map((link) => ({ ...link, addresses: link.addresses.length }))).toEqual([
    { index: 1, name: "lo", group: 0, mtu: 65_536, up: true, addresses: 4 },
    { index: 2, name: "clusternet", kind: "tun", group: 9, mtu: 1420, up: true, addresses: 1 },
    { index: 3, name: "br0", kind: "bridge", group: 0, mtu: 1500, up: false, addresses: 0 },
    { index: 4, name: "v1", kind: "veth", group: 0, mtu: 1500, up: false, addresses: 0 },
    { index: 5, name: "v0", kind: "veth", group: 0, mtu: 1500, up: true, addresses: 1 },
  ]);
  expect(links[0]?.addresses).toEqual(["127.0.0.1", "10.192.1.1", "fd00:1::1", "::1"]);
});

const onlyIpv4: RunCommand = async (argv) => {
  if (argv.includes("-6")) throw new CommandError("Cannot run it", { argv, exitCode: 2 });
  expect(argv.join(" ")).toBe("ip -N -j -4 route show table main proto 129");
  return JSON.stringify([
    { dst: "10.64.0.0/16", dev: "mesh", flags: [] },
    { dst: "10.64.0.0/16", dev: "mesh", metric: 5, flags: [] },
    { dst: "10.65.0.0/16", dev: "other", flags: [] },
    { type: "7", dst: "10.66.0.0/16", dev: "lo", metric: 4294967295, flags: [] },
  ]);
};

test("readRoutedNetworks() tells the networks of our routes on our interface, and none of a family that fails", async () => {
  expect((await readRoutedNetworks(onlyIpv4, "mesh")).map(({ text }) => text)).toEqual(["10.64.0.0/16"]);
});

test("parseIpLinks() passes over the empty objects of links left out", async () => {
  expect(parseIpLinks(await fixture("ip-link-group.json"))).toEqual([
    { index: 2, name: "clusternet", group: 9, mtu: 1420, up: true, addresses: [] },
  ]);
});

test("parseIpRoutes() reads our route, the guard and the routes of others", async () => {
  const network = parsePrefix("10.192.0.0/11");
  expect(parseIpRoutes(await fixture("ip-route-4.json"), 4)).toEqual([
    { network, type: "unicast", device: "clusternet", protocol: 129, metric: 0, src: "10.192.1.1" },
    { network, type: "unicast", device: "v0", protocol: 4, metric: 50 },
    { network, type: "unreachable", protocol: 129, metric: 4_294_967_295 },
  ]);
  const network6 = parsePrefix("fd00::/16");
  expect(parseIpRoutes(await fixture("ip-route-6.json"), 6)).toEqual([
    {
      network: network6,
      type: "unicast",
      device: "clusternet",
      protocol: 129,
      metric: 1024,
      src: "fd00:1::1",
    },
    { network: network6, type: "unreachable", protocol: 129, metric: 4_294_967_295 },
  ]);
});

test("parseWgDump() reads interface and peers and keeps no private key", async () => {
  const dump = parseWgDump(await fixture("wg-dump.txt"));
  const quiet = { latestHandshakeSeconds: 0, receivedBytes: 0, sentBytes: 0, hasPresharedKey: false };
  expect(dump).toEqual({
    publicKey: ownPublicKey,
    listenPort: 7838,
    fwmark: 7,
    peers: new Map([
      [
        keyOf(2),
        {
          ...quiet,
          endpoint: "192.0.2.2:7838",
          allowedIps: ["10.192.2.0/24", "192.0.2.2/32"],
          sentBytes: 148,
          keepaliveSeconds: 25,
        },
      ],
      [
        keyOf(3),
        {
          ...quiet,
          endpoint: "[2001:db8::3]:7838",
          // The C library writes the last one as ::1.2.3.4.
          allowedIps: ["::102:304/128", "::ffff:0.0.0.0/96", "fd00:3::/64"],
        },
      ],
      [keyOf(4), { ...quiet, allowedIps: [], hasPresharedKey: true }],
    ]),
  });
  expect(Bun.inspect(dump)).not.toContain("AAEBAQ");
});

test("WgDumpReader reads the same however the dump is cut, and gives peers back that show as they did", async () => {
  const text = await fixture("wg-dump.txt");
  const { dump: whole, read: before } = readDump(text);
  const plain: WgDump = { ...whole, peers: new Map(whole.peers) };
  expect(plain).toEqual(parseWgDump(text));
  for (let size = 1; size < 200; size += 7) {
    const { dump, read } = readDump(text, before, size);
    expect(new Map(dump.peers)).toEqual(new Map(whole.peers));
    expect(dump.peers).toBe(before.peers);
    expect(read).toBe(before);
  }
});

const anyDump = fc.uniqueArray(
  fc.record({
    byte: fc.integer({ min: 2, max: 12 }),
    prefixes: fc.subarray(["10.192.2.0/24", "10.192.3.0/24", "fd00:3::/64", "192.0.2.2/32"]),
    received: fc.nat(1),
  }),
  { selector: ({ byte }) => byte },
);

test("WgDumpReader gives up a line that does not end", () => {
  const reader = new WgDumpReader();
  const piece = new TextEncoder().encode("x".repeat(64 * 1024));
  const pushAll = (): void => {
    for (let pieces = 0; pieces < 100; pieces++) reader.push(piece);
  };
  expect(pushAll).toThrow(/line 1, expected an end of the line/);
});

test("WgDumpReader gives of one dump after the other what parseWgDump() gives, and knows who has a prefix", () => {
  fc.assert(
    fc.property(fc.array(anyDump, { minLength: 2, maxLength: 6 }), fc.boolean(), (dumps, forgets) => {
      let before: ReadDump | undefined;
      for (const each of dumps) {
        // WireGuard itself gives a prefix to one peer.
        const taken = new Set<string>();
        const peers = each.map(({ byte, prefixes, received }) => {
          const own = prefixes.filter((text) => !taken.has(text));
          for (const prefix of own) taken.add(prefix);
          const ips = own.length === 0 ? "(none)" : own.join(",");
          return `${keyOf(byte)}\t(none)\t(none)\t${ips}\t0\t${received}\t0\toff`;
        });
        const text = `${["k\tp\t7838\toff", ...peers].join("\n")}\n`;
        const { dump, read, changed } = readDump(text, before);
        expect(new Map(dump.peers)).toEqual(new Map(parseWgDump(text).peers));
        const keys = new Set([...(before?.peers.keys() ?? []), ...dump.peers.keys()]);
        const differing = [...keys].filter((key) => before?.lines.lineOf(key) !== read.lines.lineOf(key));
        expect(changed?.toSorted()).toEqual(before === undefined ? undefined : differing.toSorted());
        // Peers that are made of their lines again are the same, and as many.
        if (forgets) read.dumped.forget();
        expect(new Map(dump.peers)).toEqual(new Map(parseWgDump(text).peers));
        expect([...dump.peers.keys()].map((key) => dump.peers.get(key))).toEqual([...dump.peers.values()]);
        expect([dump.peers.size, dump.peers.has(keyOf(98))]).toEqual([each.length, false]);
        // A prefix that is given to another peer leaves the one that the index knows.
        const change = { publicKey: keyOf(99), allowedIps: [...taken] };
        const emptied = SeenPeers.of(dump.peers).fold([change]);
        expect(
          [...emptied].filter(([key, { allowedIps }]) => key !== keyOf(99) && allowedIps.length > 0),
        ).toEqual([]);
        before = read;
      }
    }),
  );
});

function readDump(
  text: string,
  before?: ReadDump,
  size = text.length,
): { dump: WgDump; read: ReadDump; changed: readonly PublicKey[] | undefined } {
  const reader = new WgDumpReader(before);
  const bytes = Buffer.from(text);
  for (let from = 0; from < bytes.length; from += size) reader.push(bytes.subarray(from, from + size));
  const dump = reader.finish();
  const read = reader.remember(SeenPeers.of(dump.peers));
  return { dump, read, changed: reader.changed };
}

test("WgDumpReader keeps the prefixes of a peer that has only shaken hands", async () => {
  const text = await fixture("wg-dump.txt");
  const { read: before } = readDump(text);
  const { dump, changed } = readDump(text.replace("\t0\t0\t148\t25", "\t1780000000\t92\t180\t25"), before);
  const [now, then] = [dump.peers.get(keyOf(2)), before.peers.get(keyOf(2))];
  expect(changed).toEqual([keyOf(2)]);
  expect(now).toEqual({
    endpoint: "192.0.2.2:7838",
    keepaliveSeconds: 25,
    hasPresharedKey: false,
    allowedIps: ["10.192.2.0/24", "192.0.2.2/32"],
    latestHandshakeSeconds: 1_780_000_000,
    receivedBytes: 92,
    sentBytes: 180,
  });
  expect(now?.allowedIps).toBe(then?.allowedIps ?? []);
});

test("parseWgDump() reads an interface that has no key yet", () => {
  expect(parseWgDump("(none)\t(none)\t0\toff\n")).toEqual({ listenPort: 0, fwmark: 0, peers: new Map() });
});

test.each([
  { name: "an empty text", text: "", line: 1 },
  { name: "a first line cut short", text: `${keyOf(1)}\t${ownPublicKey}\t7838\n`, line: 1 },
  {
    name: "a peer cut short",
    text: `${keyOf(1)}\t${ownPublicKey}\t7838\toff\n${keyOf(2)}\t(none)\n`,
    line: 2,
  },
  {
    name: "a peer twice",
    text: `${keyOf(1)}\t${ownPublicKey}\t7838\toff\n${`${keyOf(2)}\t(none)\t(none)\t(none)\t0\t0\t0\toff\n`.repeat(2)}`,
    line: 3,
  },
])("parseWgDump() refuses $name by its line number and shows none of it", ({ text, line }) => {
  let message = "";
  try {
    parseWgDump(text);
  } catch (error) {
    message = String(error);
  }
  expect(message).toContain(`line ${line}, expected`);
  expect(message).not.toContain("AQEB");
});

test.each([
  ["no JSON", "nonsense", 'Cannot read the output of "ip address show": no JSON'],
  ["an object", "{}", 'Cannot read the output of "ip address show": it is of another form'],
  ["a number for a name", '[{"ifindex":1,"ifname":2}]', '"ip address show": 0.ifname is of another form'],
])("parseIpLinks() refuses %s", (_name, text, message) => {
  expect(() => parseIpLinks(text)).toThrow(message);
});

interface Recorded {
  readonly run: RunCommand;
  readonly asked: readonly string[];
  readonly sockets: string;
}

function unchanged(_command: string, text: string): string {
  return text;
}

/** Answers with the recordings, and with what a test changes of them. */
async function recorded(change: (command: string, text: string) => string = unchanged): Promise<Recorded> {
  const files: Record<string, string> = {
    "ip -N -j -d address show": "ip-address.json",
    "ip -N -j -d route show table main root 10.192.0.0/11": "ip-route-4.json",
    "ip -N -j -d -6 route show table main root fd00::/16": "ip-route-6.json",
    "wg show clusternet dump": "wg-dump.txt",
  };
  const asked: string[] = [];
  const run: RunCommand = async (argv) => {
    const command = argv.join(" ");
    asked.push(command);
    const file = files[command];
    if (file === undefined) throw new CommandError(`unexpected ${command}`, { argv });
    return change(command, await fixture(file));
  };
  const sockets = await fixture("proc-net-unix.txt");
  return { run, asked, sockets };
}

/** A guard as `ip` prints it. */
function guardAt(dst: string, protocol: string): string {
  return JSON.stringify({ type: "7", dst, protocol, metric: 4_294_967_295 });
}

describe("readHost()", () => {
  const networks = [parsePrefix("10.192.0.0/11"), parsePrefix("fd00::/16")];

  const base = { interfaceName: "clusternet", networks, ourKeys: new Set([ownPublicKey]) };

  test("finds the interface of wireguard-go, its routes and the addresses", async () => {
    const { run, sockets } = await recorded();
    const seen = await readHost({ ...base, run, readUnixSockets: () => Promise.resolve(sockets) });
    const { peers, ...link } = seen.interface ?? {};
    expect({ ...seen, interface: link, peers: peers?.size }).toEqual({
      interface: {
        index: 2,
        name: "clusternet",
        implementation: "userspace",
        group: 9,
        mtu: 1420,
        up: true,
        publicKey: ownPublicKey,
        listenPort: 7838,
        fwmark: 7,
      },
      peers: 3,
      routes: [
        ...parseIpRoutes(await fixture("ip-route-4.json"), 4),
        ...parseIpRoutes(await fixture("ip-route-6.json"), 6),
      ],
      loopback: ["127.0.0.1", "10.192.1.1", "fd00:1::1", "::1"],
      addresses: seen.addresses,
    });
    expect(seen.addresses.has("192.0.2.1")).toBe(true);
  });

  test("tells of routes inside a network those of our protocol, each once where two networks hold it", async () => {
    const inner = [
      guardAt("10.192.0.0/11", "4"),
      guardAt("10.193.0.0/16", "129"),
      guardAt("10.194.0.0/16", "4"),
    ];
    const answers: Record<string, readonly string[]> = {
      "ip -N -j -d route show table main root 10.192.0.0/11": inner,
      "ip -N -j -d route show table main root 10.128.0.0/9": [guardAt("10.129.0.0/16", "129"), ...inner],
    };
    const run: RunCommand = (argv) => Promise.resolve(`[${(answers[argv.join(" ")] ?? []).join(",")}]`);
    const nested = ["10.192.0.0/11", "10.128.0.0/9"].map(parsePrefix);
    const seen = await readHost({
      ...base,
      networks: nested,
      run,
      readUnixSockets: () => Promise.resolve(""),
    });
    expect(seen.routes.map(({ network, protocol }) => [network.text, protocol])).toEqual([
      ["10.192.0.0/11", 4],
      ["10.193.0.0/16", 129],
      ["10.129.0.0/16", 129],
    ]);
  });

  test("never asks a socket that belongs to another network namespace", async () => {
    const { run, asked } = await recorded();
    const seen = await readHost({ ...base, run, readUnixSockets: () => Promise.resolve("") });
    expect({ interface: seen.interface, foreign: seen.foreignLink }).toEqual({
      interface: undefined,
      foreign: "tun",
    });
    expect(asked.filter((command) => command.startsWith("wg"))).toEqual([]);
  });

  test("never asks a socket whose link is gone", async () => {
    const { run, asked, sockets } = await recorded((command, text) =>
      command.includes("address") ? '[{"ifindex":1,"ifname":"lo"}]' : text,
    );
    const seen = await readHost({ ...base, run, readUnixSockets: () => Promise.resolve(sockets) });
    expect({ interface: seen.interface, foreign: seen.foreignLink }).toEqual({
      interface: undefined,
      foreign: undefined,
    });
    expect(asked.filter((command) => command.startsWith("wg"))).toEqual([]);
  });

  test.each([
    {
      name: "by its index, whatever its group",
      index: 2,
      group: 0,
      ourKeys: [ownPublicKey],
      found: "renamed",
    },
    { name: "after a restart by group and key", group: 9, ourKeys: [ownPublicKey], found: "renamed" },
    {
      name: "by group and key when it was made anew",
      index: 1,
      group: 9,
      ourKeys: [ownPublicKey],
      found: "renamed",
    },
    { name: "never by its key alone", index: 1, group: 0, ourKeys: [ownPublicKey], found: undefined },
    { name: "never with a key that is not ours", index: 2, group: 9, ourKeys: [], found: undefined },
  ])("finds a renamed interface $name", async ({ index, group, ourKeys, found }) => {
    const { run, sockets } = await recorded((command, text) =>
      command.includes("address")
        ? text
            .replace('"ifname":"clusternet"', '"ifname":"renamed"')
            .replace('"group":"9"', `"group":"${group}"`)
        : text,
    );
    const seen = await readHost({
      ...base,
      run,
      ourKeys: new Set(ourKeys),
      ...(index === undefined ? {} : { index }),
      readUnixSockets: () => Promise.resolve(sockets),
    });
    expect(seen.interface?.name).toBe(found);
  });

  test("says what kind of link has our name when it is not WireGuard", async () => {
    const { run } = await recorded();
    const seen = await readHost({
      ...base,
      interfaceName: "br0",
      run,
      readUnixSockets: () => Promise.resolve(""),
    });
    expect(seen.foreignLink).toBe("bridge");
  });
});

test.each([
  { name: "a listening socket of this name", text: "listening", of: "clusternet", want: true },
  { name: "one of another name", text: "listening", of: "net", want: false },
  { name: "one that is connected but does not listen", text: "connected", of: "clusternet", want: false },
])("hasListener() of $name", async ({ text, of, want }) => {
  const listening = await fixture("proc-net-unix.txt");
  const sockets = text === "listening" ? listening : listening.replace("00010000", "00000000");
  expect(hasListener(sockets, of)).toBe(want);
});

test("hintOf() tells the mesh by our link, lo and our routes, the underlay by its devices, addresses and default routes", async () => {
  const lines = (await fixture("ip-monitor.txt")).split("\n").filter((line) => line !== "");
  const concern = {
    interfaceName: "clusternet",
    index: 2,
    networks: ["10.192.0.0/11", "fd00::/16"],
    underlayDevices: ["pod8"],
  };
  const shown = lines.flatMap((line) => {
    const { mesh, underlay } = hintOf(line, concern);
    const what = [...(mesh ? ["mesh"] : []), ...(underlay ? ["underlay"] : [])].join("+");
    return what === "" ? [] : [`${what}: ${line.slice(0, 44).trimEnd()}`];
  });
  expect(shown).toEqual([
    "mesh+underlay: 1: lo    inet 10.192.9.1/32 scope global lo\\",
    "mesh+underlay: Deleted 1: lo    inet 10.192.9.1/32 scope gl",
    "underlay: default via 192.0.2.254 dev v0 linkdown",
    "underlay: Deleted default via 192.0.2.254 dev v0 linkd",
    "underlay: 6: pod8@NONE: <BROADCAST,MULTICAST> mtu 1500",
    "underlay: 6: pod8@pod7: <NO-CARRIER,BROADCAST,MULTICAS",
    "underlay: 6: pod8@pod7: <BROADCAST,MULTICAST,UP,LOWER_",
    "underlay: 6: pod8@NONE: <BROADCAST,MULTICAST> mtu 1500",
    "underlay: Deleted 6: pod8@NONE: <BROADCAST,MULTICAST>",
    "mesh: Deleted 10.192.0.0/11 dev clusternet proto 1",
    "mesh: 2: clusternet: <POINTOPOINT,MULTICAST,NOARP>",
    "mesh: Deleted fd00::/16 dev clusternet proto 129 s",
    "mesh: Deleted fe80::/64 dev clusternet proto kerne",
    "mesh: Deleted local fe80::41f4:5eed:8530:a6af dev",
    "mesh: Deleted multicast ff00::/8 dev clusternet ta",
    "mesh: Deleted 2: clusternet    inet6 fe80::41f4:5e",
    "mesh: 2: renamed: <POINTOPOINT,MULTICAST,NOARP> mt",
    "mesh: Deleted unreachable 10.192.0.0/11 proto 129",
    "mesh: Deleted 2: renamed: <POINTOPOINT,MULTICAST,N",
  ]);
});

test.each([
  ["2: eth0    inet 192.0.2.9/24 scope global eth0\\       valid_lft forever", true],
  ["Deleted 2: eth0    inet 192.0.2.9/24 scope global secondary eth0\\       valid_lft forever", true],
  ["9: other    inet6 2001:db8::9/64 scope global deprecated \\       valid_lft forever", true],
  ["9: veth7    inet6 fe80::1/64 scope link \\       valid_lft forever", false],
  ["2: eth0@if5: <BROADCAST,UP> mtu 1400 qdisc noqueue state UP", true],
  ["3: other: <BROADCAST,UP> mtu 1400 qdisc noqueue state UP", false],
  ["local 192.0.2.9 dev eth0 table local proto kernel scope host src 192.0.2.9", false],
  ["7: clusternet    inet 10.192.1.1/32 scope global clusternet", false],
])("hintOf() of %p tells of the underlay: %p", (line, underlay) => {
  const concern = { interfaceName: "clusternet", networks: ["10.192.0.0/11"], underlayDevices: ["eth0"] };
  expect(hintOf(line, concern).underlay).toBe(underlay);
});

const ours = { interfaceName: "clusternet", networks: [], underlayDevices: [] };

test("hintOf() of a device of our name that is underlay tells of both", () => {
  const concern = { interfaceName: "eth0", networks: [], underlayDevices: ["eth0"] };
  const lines = [
    "2: eth0    inet 192.0.2.9/24 scope global eth0",
    "2: eth0    inet6 fe80::1/64 scope link",
    "2: eth0: <UP> mtu 1400",
  ];
  expect(lines.map((line) => hintOf(line, concern))).toEqual([
    { mesh: true, underlay: true },
    { mesh: true, underlay: false },
    { mesh: true, underlay: true },
  ]);
});

describe("followHints()", () => {
  test("merges what comes together, spaces hints by half a second and starts the program again when it ends", async () => {
    const clock = new FakeClock();
    const stop = new AbortController();
    /** What the next line of each started program is; undefined ends it. */
    const feeds: ((line: string | undefined) => void)[] = [];
    const follow: FollowCommand = (_argv, signal) => {
      return new ReadableStream<string>({
        start(controller) {
          const close = (): void => controller.close();
          signal.addEventListener("abort", close, { once: true });
          feeds.push((line) => {
            if (line !== undefined) return controller.enqueue(line);
            signal.removeEventListener("abort", close);
            close();
          });
        },
      });
    };
    const hints: number[] = [];
    const loop = (async () => {
      for await (const _hint of followHints(
        { follow, log: silentLogger, clock, concern: () => ours },
        stop.signal,
      )) {
        hints.push(clock.nowMs());
      }
    })();
    const feed = await waitFor(() => feeds[0], "the monitor to be started");
    const line = "2: clusternet: <UP> mtu 1420";
    for (let count = 0; count < 100; count++) feed(line);
    feed("7: pod7: <UP> mtu 1500");
    const passing = async (want: number): Promise<void> => {
      await waitFor(async () => {
        await clock.advance(10);
        return hints.length >= want;
      }, `hint ${want}`);
    };
    await passing(1);
    feed(line);
    await passing(2);
    expect((hints[1] ?? 0) - (hints[0] ?? 0)).toBeGreaterThanOrEqual(450);
    // Nobody knows what changed before the program listened.
    await passing(3);
    expect(hints[2]).toBeGreaterThanOrEqual(1_000);
    // The same when it ends, and is started again.
    feed(undefined);
    await passing(4);
    expect(feeds).toHaveLength(2);
    stop.abort();
    await loop;
    expect(hints).toHaveLength(4);
  });

  test("starts a program that ends after a line ever more rarely, and says so once", async () => {
    const clock = new FakeClock();
    clock.nextRandom = 0.999;
    const stop = new AbortController();
    const warnings: string[] = [];
    const log = { ...silentLogger, warn: (message: string) => void warnings.push(message) };
    let lastsMs = 0;
    let starts = 0;
    const follow: FollowCommand = async function* (_argv, signal) {
      starts++;
      yield "2: clusternet: <UP> mtu 1420";
      await clock.sleep(lastsMs, signal);
      yield "2: clusternet: <UP> mtu 1420";
    };
    const loop = (async () => {
      const hints = followHints({ follow, log, clock, concern: () => ours }, stop.signal);
      for await (const hint of hints) expect(hint.mesh).toBe(true);
    })();
    const startsBy = async (ms: number): Promise<number> => {
      await clock.advance(ms - clock.nowMs());
      return starts;
    };
    expect([await startsBy(490), await startsBy(1_490), await startsBy(3_490)]).toEqual([1, 2, 3]);
    expect(warnings).toHaveLength(1);
    // One that works for a while is started again as soon as the first, and its end is news.
    lastsMs = 60_000;
    expect([await startsBy(3_510), await startsBy(63_490), await startsBy(64_010)]).toEqual([4, 4, 5]);
    expect(warnings).toHaveLength(2);
    stop.abort();
    await loop;
  });
});
