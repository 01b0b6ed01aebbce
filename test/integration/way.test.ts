/**
 * The way of packets through the mesh: over both families inside and outside, in packets as large as the underlay
 * takes, from behind NAT, with an external address as source, and not at all when there is no way.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Agent, podOf, type AgentOptions } from "../lab/agent.ts";
import { underlayDevice, type Machine } from "../lab/lab.ts";
import { LeakWatch } from "../lab/leak-watch.ts";
import type { Namespace } from "../lab/namespace.ts";
import { sharedLab } from "../lab/shared-lab.ts";
import { finishPing, nothingLost, soonMs } from "../lab/stage.ts";
import { transfer } from "../lab/transfer.ts";
import { waitFor } from "../lab/wait.ts";

const shared = sharedLab();
let directory: string;
beforeAll(async () => {
  directory = await shared.lab.directory();
});

/** Nodes of one mesh, each with pods of both families. */
let lastNumber = 0;
interface NodeOfMesh {
  readonly agent: Agent;
  readonly machine: Machine;
  /** Addresses of its pod. */
  readonly pod4: string;
  readonly pod6: string;
}

/** `network`: it is behind NAT, in this network, and announces the address that it has there, which leads nowhere. */
async function startNode(
  name: string,
  options: Partial<AgentOptions> & {
    readonly outer?: 4 | 6;
    readonly network?: string;
    readonly host?: number;
  } = {},
): Promise<NodeOfMesh> {
  const { network, host = 2, outer = 4, flags = [], ...rest } = options;
  const pod = podOf(++lastNumber);
  const machine = await shared.lab.machine(name, {
    pod,
    ...(network === undefined ? {} : { address: `${network}.${host}` }),
  });
  if (network !== undefined) await machine.ip(`route add default via ${network}.1 dev ${underlayDevice}`);
  const agent = await Agent.start(machine, {
    curator: shared.curator.address,
    directory,
    pod,
    externalAddress: outer === 4 ? machine.address : machine.address6,
    flags: ["--report-status", "on", ...flags],
    ...rest,
  });
  const [four, six] = pod;
  return { agent, machine, pod4: four?.address ?? "", pod6: six?.address ?? "" };
}

/** The endpoint that a node has for another. */
async function endpointOf(node: NodeOfMesh, other: NodeOfMesh): Promise<string> {
  const key = (await other.machine.exec(["wg", "show", "clusternet", "public-key"])).trim();
  const shown = await node.machine.exec(["wg", "show", "clusternet", "endpoints"]);
  const line = shown.split("\n").find((each) => each.startsWith(key));
  return line?.split("\t")[1] ?? "";
}

describe("nodes of both families", () => {
  let four: readonly [NodeOfMesh, NodeOfMesh];
  let six: readonly [NodeOfMesh, NodeOfMesh];
  beforeAll(async () => {
    // What changes here is told by the kernel.
    const flags = ["--resync", "600"];
    const [a, b, c, d] = await Promise.all([
      startNode("a", { flags }),
      startNode("b", { flags }),
      startNode("c", { outer: 6, flags }),
      startNode("d", { outer: 6, flags }),
    ]);
    four = [a, b];
    six = [c, d];
  }, 60_000);
  afterAll(async () => {
    for (const { agent } of [...four, ...six]) await agent.kill();
  });

  test.each([
    { outer: "IPv4", inner: "IPv4", nodes: () => four, pod: "pod4", endpoint: /^192\.0\.2\.\d+:7838$/ },
    { outer: "IPv4", inner: "IPv6", nodes: () => four, pod: "pod6", endpoint: /^192\.0\.2\.\d+:7838$/ },
    {
      outer: "IPv6",
      inner: "IPv4",
      nodes: () => six,
      pod: "pod4",
      endpoint: /^\[2001:db8::[0-9a-f]+\]:7838$/,
    },
    {
      outer: "IPv6",
      inner: "IPv6",
      nodes: () => six,
      pod: "pod6",
      endpoint: /^\[2001:db8::[0-9a-f]+\]:7838$/,
    },
  ] as const)(
    "carry $inner over $outer, between pods and from the hosts",
    async ({ nodes, pod, endpoint }) => {
      const [from, to] = nodes();
      await from.machine.pod.reach(to[pod], { limitMs: soonMs });
      expect(await endpointOf(from, to)).toMatch(endpoint);
      const pings = [from.machine.pod.ping(to[pod]), from.machine.ping(to[pod])];
      for (const ping of pings) expect(await finishPing(ping, 200)).toEqual(nothingLost);
    },
  );

  test("reach each other also when one is known by IPv4 and the other by IPv6", async () => {
    for (const pod of ["pod4", "pod6"] as const) {
      await four[0].machine.pod.reach(six[0][pod], { limitMs: soonMs });
      await six[1].machine.pod.reach(four[1][pod], { limitMs: soonMs });
    }
  });

  // From the largest on: the kernel of a pod remembers for ten minutes how little once fitted.
  test.each([9000, 1500, 1400])(
    "send packets as large as an underlay of %p takes, and no fragment (case 35)",
    async (mtu) => {
      const all = [...four, ...six];
      for (const { machine } of all) await setMtu(machine, mtu);
      for (const { machine } of all) {
        await waitFor(async () => (await mtuOf(machine, "clusternet")) === mtu - 80, {
          limitMs: soonMs,
          what: `MTU ${mtu - 80}`,
        });
      }
      const before = await Promise.all(all.map(({ machine }) => fragmentsOf(machine.namespace)));
      await shared.lab.underlay.exec(["nft", "-f", "-"], { stdin: counting(mtu) });
      // The overhead is that of IPv6: over IPv4 twenty bytes stay unused.
      await transfer({ from: four[0].machine.pod, to: four[1].machine.pod, address: four[1].pod4, bytes });
      await transfer({ from: six[0].machine.pod, to: six[1].machine.pod, address: six[1].pod6, bytes });
      const counted = await shared.lab.underlay.exec(["nft", "list", "table", "bridge", "sizes"]);
      const [full4 = 0, full6 = 0, larger] = [...counted.matchAll(/counter packets (\d+)/g)].map(([, n]) =>
        Number(n),
      );
      const least = (bytes / mtu) * 0.8;
      expect({ full4: full4 > least, full6: full6 > least, larger }).toEqual({
        full4: true,
        full6: true,
        larger: 0,
      });
      expect(await Promise.all(all.map(({ machine }) => fragmentsOf(machine.namespace)))).toEqual(before);
      expect((await four[0].agent.status(() => true, soonMs)).problems).toEqual([]);
    },
  );

  test("would be seen to send fragments", async () => {
    const [{ machine }, other] = four;
    const before = await fragmentsOf(machine.namespace);
    // The underlay drops them, so there is no reply to wait for.
    await machine.run(["ping", "-c", "1", "-W", "0.2", "-s", "12000", other.machine.address]);
    expect((await fragmentsOf(machine.namespace)) - before).toBeGreaterThan(0);
  });
});

describe("a node behind NAT", () => {
  test("is reached once it has spoken, goes on being reached with --keepalive, and another one behind NAT is not (case 1)", async () => {
    const [gate, otherGate] = await Promise.all([
      gateway("gate", "203.0.113"),
      gateway("gate2", "198.51.100"),
    ]);
    const recorder = await shared.lab.recorder();
    const [open, quiet, near] = await Promise.all([
      startNode("open", { path: recorder.path, flags: ["--resync", "1"] }),
      startNode("quiet", { network: "203.0.113" }),
      startNode("near", { network: "203.0.113", host: 3 }),
    ]);
    await using _open = open.agent;
    await using _quiet = quiet.agent;
    await using _near = near.agent;
    await open.agent.peers((peers) => peers.length >= 1, soonMs);
    // Nobody outside can speak first: the address that it announces is of another network.
    expect(await replies(open, quiet)).toBe(false);
    await quiet.machine.pod.reach(open.pod4, { limitMs: soonMs });
    expect(await replies(open, quiet)).toBe(true);
    const learned = await endpointOf(open, quiet);
    expect(learned).toStartWith(`${gate.address}:`);
    expect(learned).not.toBe(`${gate.address}:7838`);

    // One that speaks by itself needs nobody to wake it.
    const kept = await startNode("kept", { network: "198.51.100", flags: ["--keepalive", "1"] });
    await using _kept = kept.agent;
    const endpoint = await waitFor(
      async () => {
        const now = await endpointOf(open, kept);
        return now.startsWith(`${otherGate.address}:`) && now;
      },
      { limitMs: soonMs, what: "a word of the node that keeps its way open" },
    );
    const dump = await kept.machine.exec(["wg", "show", "clusternet", "persistent-keepalive"]);
    expect(
      dump
        .split("\n")
        .slice(0, -1)
        .every((line) => line.endsWith("\t1")),
    ).toBe(true);
    await recorder.clear();
    const ping = open.machine.pod.ping(kept.pod4);
    const resyncs = async (): Promise<number> =>
      (await recorder.calls()).filter((call) => call.join(" ") === "wg show clusternet dump").length;
    await waitFor(async () => (await resyncs()) >= 3, { limitMs: 4 * soonMs, what: "three resyncs" });
    expect(await finishPing(ping, 300)).toEqual(nothingLost);
    expect(await endpointOf(open, kept)).toBe(endpoint);
    expect(await recorder.changes()).toEqual([]);

    // Each only knows the other's hidden address, which is of use in one and the same network.
    expect(await replies(quiet, kept)).toBe(false);
    expect(await replies(kept, quiet)).toBe(false);
    expect(await replies(quiet, open)).toBe(true);
    await near.machine.pod.reach(quiet.pod4, { limitMs: soonMs });
    expect(await endpointOf(near, quiet)).toBe("203.0.113.2:7838");
  });
});

describe("a host without a pod prefix", () => {
  test("reaches pods through the mesh by its external address, and their replies come outside of it", async () => {
    const a = await startNode("served");
    await using _a = a.agent;
    const host = await shared.lab.machine("host");
    await using agent = await Agent.start(host, {
      curator: shared.curator.address,
      directory,
      flags: ["--report-status", "on"],
    });
    await agent.peers((peers) => peers.length > 0, soonMs);
    for (const machine of [a.machine, host]) {
      await machine.exec(["nft", "-f", "-"], {
        stdin: `table inet seen {
          chain in {
            type filter hook prerouting priority 0
            iifname clusternet icmp type echo-request ip saddr ${host.address} counter comment "request in the mesh"
            iifname eth0 icmp type echo-request ip saddr ${host.address} counter comment "request outside"
            iifname clusternet icmp type echo-reply ip saddr ${a.pod4} counter comment "reply in the mesh"
            iifname eth0 icmp type echo-reply ip saddr ${a.pod4} counter comment "reply outside"
          }
        }`,
      });
    }
    await host.reach(a.pod4, { limitMs: soonMs });
    expect(await seenBy(a.machine)).toMatchObject({ "request in the mesh": true, "request outside": false });
    expect(await seenBy(host)).toMatchObject({ "reply in the mesh": false, "reply outside": true });

    // A node that wants packets to come from where replies would go takes none of it.
    await strict(a.machine);
    expect((await host.run(["ping", "-c", "1", "-W", "1", a.pod4])).code).not.toBe(0);
    // With a pod prefix, if only of one address, both ways are the mesh's.
    await agent.process.stop();
    await using addressed = await agent.restart({
      flags: ["--report-status", "on", "--pod-prefix", "10.192.200.1/32"],
    });
    await strict(host);
    await host.reach(a.pod4, { limitMs: soonMs });
    expect(addressed.process.exit).toBeUndefined();
  });
});

describe("packets that have no way", () => {
  test("are answered at once while the interface is away, and none leaves in plain text while it is made", async () => {
    const [a, b] = await Promise.all([startNode("from"), startNode("to")]);
    await using _a = a.agent;
    await using _b = b.agent;
    // Not from the pod: the kernel keeps account of the errors that it sends to somebody.
    await a.machine.reach(b.pod4, { limitMs: soonMs });
    await a.agent.process.stop();
    await using watch = await LeakWatch.start(a.machine);
    await a.machine.ip("link delete clusternet");
    for (const [who, target] of [
      [a.machine.namespace, b.pod4],
      [a.machine.namespace, b.pod6],
      [a.machine.pod, b.pod4],
      [a.machine.pod, b.pod6],
    ] as const) {
      const sinceMs = performance.now();
      const { stdout, stderr } = await who.run(["ping", "-c", "1", "-W", "5", target]);
      expect([stdout + stderr, performance.now() - sinceMs < 2_000]).toEqual([
        expect.stringMatching(/unreachable|No route/i),
        true,
      ]);
    }
    // After that, since the kernel answers a sender who goes on with one error a second only.
    const ping = a.machine.pod.ping(b.pod4);
    await ping.sent(50, soonMs);
    await using _again = await a.agent.restart();
    await a.machine.pod.reach(b.pod4, { limitMs: soonMs });
    await ping.stop();
    expect(await watch.stop()).toEqual([]);
  });
});

/** Takes packets only from where a reply would be sent. */
async function strict(machine: Machine): Promise<void> {
  await machine.exec(["sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 1 >$f; done"]);
}

/** Bytes of a transfer in each direction. */
const bytes = 3 << 20;

/** Counts packets of WireGuard on the underlay: as large as they may be over IPv4 and over IPv6, and larger or in pieces. */
function counting(mtu: number): string {
  return `
table bridge sizes
delete table bridge sizes
table bridge sizes {
  chain forward {
    type filter hook forward priority 0;
    ether type ip udp dport 7838 meta length ${mtu - 20} counter
    ether type ip6 udp dport 7838 meta length ${mtu} counter
    meta length > ${mtu} counter
    ether type ip ip frag-off & 0x3fff != 0 counter drop
    ether type ip6 exthdr frag exists counter drop
  }
}
`;
}

async function setMtu(machine: Machine, mtu: number): Promise<void> {
  // Pods believe in the underlay's MTU, or in 1500: what does not fit is for them to find out.
  const ofPods = Math.max(mtu, 1500);
  await shared.lab.underlay.ip(`link set to-${machine.name} mtu ${mtu}`);
  await machine.ip(`link set ${underlayDevice} mtu ${mtu}`, `link set pod mtu ${ofPods}`);
  await machine.pod.ip(`link set ${underlayDevice} mtu ${ofPods}`);
}

async function mtuOf(machine: Machine, device: string): Promise<number | undefined> {
  const [link] = JSON.parse(await machine.exec(["ip", "-j", "link", "show", device])) as { mtu: number }[];
  return link?.mtu;
}

/** How many fragments the host has made, and how many it has been sent. */
async function fragmentsOf(namespace: Namespace): Promise<number> {
  const old = await namespace.exec(["cat", "/proc/net/snmp"]);
  const [names = [], values = []] = old
    .split("\n")
    .filter((line) => line.startsWith("Ip:"))
    .map((line) => line.split(" "));
  const six = await namespace.exec(["cat", "/proc/net/snmp6"]);
  const counters = [
    ...names.map((name, at) => [name, values[at]] as const),
    ...six.split("\n").map((line) => line.trim().split(/\s+/)),
  ];
  return counters
    .filter(([name = ""]) => /^(Ip6)?(FragCreates|ReasmReqds)$/.test(name))
    .reduce((sum, [, value]) => sum + Number(value), 0);
}

/** Whether one ping from pod to pod is answered. */
async function replies(from: NodeOfMesh, to: NodeOfMesh): Promise<boolean> {
  return (await from.machine.pod.run(["ping", "-c", "1", "-W", "1", to.pod4])).code === 0;
}

/** Which of the commented counters of table "seen" have counted anything. */
async function seenBy(machine: Machine): Promise<Readonly<Record<string, boolean>>> {
  const shown = await machine.exec(["nft", "list", "table", "inet", "seen"]);
  return Object.fromEntries(
    Array.from(shown.matchAll(/packets (\d+) .*comment "([^"]+)"/g), ([, count, what = ""]) => [
      what,
      count !== "0",
    ]),
  );
}

/** A machine that hides a network, which nobody else has a route to, behind its own address. */
async function gateway(name: string, network: string): Promise<Machine> {
  const machine = await shared.lab.machine(name);
  await machine.ip(`address add ${network}.1/24 dev ${underlayDevice}`);
  await machine.exec(["sysctl", "-q", "-w", "net.ipv4.conf.all.send_redirects=0"]);
  await machine.exec(["sysctl", "-q", "-w", `net.ipv4.conf.${underlayDevice}.send_redirects=0`]);
  await machine.exec(["nft", "-f", "-"], {
    stdin: `table ip nat {
      chain post {
        type nat hook postrouting priority 100
        ip saddr ${network}.0/24 masquerade random
      }
    }`,
  });
  return machine;
}
