/**
 * Shows a mesh: `bun run demo`.
 *
 * One Curator and four nodes, each in a network namespace of its own with a pod behind it, on one underlay, and with
 * credentials of a cluster CA that `clusternet pki` makes.
 * Everything that is shown is asked of the programs while they run: the Curator's log, the agents' status,
 * real pings. Ends with status 0 only when all of it held. Nothing of this machine is touched but for
 * missing Debian packages, and nothing stays; Ctrl-C cleans up as well.
 */
import { join } from "node:path";
import { Lab, type Machine } from "../test/lab/lab.ts";
import type { PingResult } from "../test/lab/ping.ts";
import type { LabProcess } from "../test/lab/process.ts";
import { LabTrust } from "../test/lab/trust.ts";
import { waitFor } from "../test/lab/wait.ts";
import { build, isStale } from "./build.ts";
import { binary } from "./paths.ts";
import { setup } from "./setup.ts";

/** Packets of each counted ping: ten seconds at 200 a second. */
const pingCount = 2_000;
const clusterNets = ["10.192.0.0/11", "fd10:c1::/32"];
const curatorAddress = "192.0.2.100";

/** What the demo reads of an agent's answer to /status. */
interface Status {
  readonly agent: { readonly ready: boolean };
  readonly interface: { readonly name: string; readonly implementation: string };
  readonly peers: readonly {
    readonly id: string;
    readonly endpoint: string | null;
    readonly prefixes: readonly string[];
    readonly latestHandshakeAt: string | null;
  }[];
}

/** One node of the mesh with its agent. */
class Node {
  readonly number: number;
  readonly name: string;
  readonly machine: Machine;
  readonly dataDirectory: string;
  /** Peers that were told of, and whether their first handshake was. */
  readonly told = new Map<string, boolean>();
  agent: LabProcess;

  constructor(number: number, machine: Machine, dataDirectory: string) {
    this.number = number;
    this.name = machine.name;
    this.machine = machine;
    this.dataDirectory = dataDirectory;
    this.agent = this.start();
  }

  /** Starts the agent, for the first time or again. */
  start(): LabProcess {
    const { ipv4, ipv6 } = podPrefixes(this.number);
    this.agent = this.machine.spawn([
      binary,
      "run",
      "--report-status",
      `--curator=${curatorAddress}:7835`,
      `--data-dir=${this.dataDirectory}`,
      `--pod-prefix=${ipv4}`,
      `--pod-prefix=${ipv6}`,
      ...clusterNets.map((network) => `--cluster-net=${network}`),
    ]);
    return this.agent;
  }

  /** What the agent says; undefined while none answers. */
  async status(): Promise<Status | undefined> {
    try {
      const response = await fetch("http://agent/status", {
        unix: join(this.dataDirectory, "clusternet.sock"),
      });
      return (await response.json()) as Status;
    } catch {
      // Not yet started, or stopped on purpose.
      return undefined;
    }
  }
}

const started = performance.now();
const elapsed = (): string => ((performance.now() - started) / 1000).toFixed(1);
const say = (who: string, what: string): void =>
  console.log(`${elapsed().padStart(6)} s  ${who.padEnd(8)}  ${what}`);
const heading = (text: string): void => console.log(`\n${text}\n`);
const processes: LabProcess[] = [];
const verdicts: { readonly name: string; readonly good: boolean; readonly detail: string }[] = [];

function judge(name: string, good: boolean, detail: string): void {
  verdicts.push({ name, good, detail });
  say(good ? "ok" : "FAILED", `${name}: ${detail}`);
}

function podPrefixes(number: number): { readonly ipv4: string; readonly ipv6: string } {
  return { ipv4: `10.192.${number}.0/24`, ipv6: `fd10:c1:0:${number}::/64` };
}

const podAddresses = (number: number): { readonly ipv4: string; readonly ipv6: string } => ({
  ipv4: `10.192.${number}.2`,
  ipv6: `fd10:c1:0:${number}::2`,
});

/** Tells of every peer that came, went, or shook hands for the first time since the last look. */
async function tellPeers(nodes: readonly Node[]): Promise<void> {
  for (const node of nodes) {
    const status = await node.status();
    if (status === undefined) continue;
    for (const { id, endpoint, prefixes, latestHandshakeAt } of status.peers) {
      // On the interface and in no mesh: just being taken away.
      if (id === null) continue;
      if (!node.told.has(id)) {
        say(node.name, `peer ${id} added: ${endpoint ?? "no endpoint"}, ${prefixes.join(", ")}`);
        node.told.set(id, false);
      }
      if (node.told.get(id) === false && latestHandshakeAt !== null) {
        say(node.name, `first handshake with ${id}`);
        node.told.set(id, true);
      }
    }
    for (const id of node.told.keys()) {
      if (status.peers.some((peer) => peer.id === id)) continue;
      say(node.name, `peer ${id} removed`);
      node.told.delete(id);
    }
  }
}

async function startCurator(lab: Lab, machine: Machine, trust: LabTrust): Promise<string> {
  const dataDirectory = await lab.directory();
  await trust.issue("curator", dataDirectory);
  const curator = machine.spawn(
    [
      binary,
      "curator",
      `--listen=${curatorAddress}:7835`,
      `--data-dir=${dataDirectory}`,
      ...clusterNets.map((network) => `--cluster-net=${network}`),
    ],
    {
      onLine: ({ text }) => {
        // TIME LEVEL MESSAGE: the time is told by `say`.
        const [, message] = /^\S+ (?:INFO|WARN|ERROR) +(Node .*)$/.exec(text) ?? [];
        if (message !== undefined) say("curator", message);
      },
    },
  );
  processes.push(curator);
  await curator.waitForLine(/listening/, { limitMs: 15_000 });
  say("curator", `listens on ${curatorAddress}:7835`);
  return dataDirectory;
}

/** Makes machines and credentials side by side, and starts the agents one after the other: so are their lines in order. */
async function startNodes(
  lab: Lab,
  trust: LabTrust,
  ...numbers: readonly number[]
): Promise<readonly Node[]> {
  const places = await Promise.all(
    numbers.map(async (number) => {
      const prefixes = podPrefixes(number);
      const addresses = podAddresses(number);
      const machine = await lab.machine(`node-${number}`, {
        address: `192.0.2.${number}`,
        address6: `2001:db8::${number}`,
        pod: [
          { prefix: prefixes.ipv4, address: addresses.ipv4 },
          { prefix: prefixes.ipv6, address: addresses.ipv6 },
        ],
      });
      const dataDirectory = await lab.directory();
      await trust.issue(machine.name, dataDirectory);
      return { number, machine, addresses, dataDirectory };
    }),
  );
  return places.map(({ number, machine, addresses, dataDirectory }) => {
    const node = new Node(number, machine, dataDirectory);
    processes.push(node.agent);
    say(node.name, `agent started at ${machine.address}, pod at ${addresses.ipv4} and ${addresses.ipv6}`);
    return node;
  });
}

/** Waits until every one of `nodes` has exactly the others as peers, telling of what happens meanwhile. */
async function meshOf(nodes: readonly Node[]): Promise<void> {
  const wanted = (node: Node): string =>
    nodes
      .filter((other) => other !== node)
      .map(({ name }) => name)
      .join(" ");
  await waitFor(
    async () => {
      await tellPeers(nodes);
      const seen = await Promise.all(nodes.map((node) => node.status()));
      return nodes.every((node, index) => seen[index]?.peers.map(({ id }) => id).join(" ") === wanted(node));
    },
    { limitMs: 40_000, what: `a mesh of ${nodes.map(({ name }) => name).join(", ")}`, everyMs: 100 },
  );
}

const cell = (text: string): string => text.padStart(10);

/** Pings from every pod to every other, and prints the mean round trips as a table. */
async function pingAllPairs(nodes: readonly Node[], family: "ipv4" | "ipv6"): Promise<void> {
  const times = new Map<string, string>();
  const pairs = nodes.flatMap((from) => nodes.filter((to) => to !== from).map((to) => ({ from, to })));
  await Promise.all(
    pairs.map(async ({ from, to }) => {
      const target = podAddresses(to.number)[family];
      // The first packet waits for the handshake.
      await from.machine.pod.reach(target, { limitMs: 20_000 });
      const output = await from.machine.pod.exec(["ping", "-n", "-c", "5", "-i", "0.1", "-W", "1", target]);
      const [, mean] = / 0% packet loss[^]*= [\d.]+\/([\d.]+)\//.exec(output) ?? [];
      if (mean !== undefined) times.set(`${from.name} ${to.name}`, `${Number(mean).toFixed(2)} ms`);
    }),
  );
  await tellPeers(nodes);
  const table = nodes.map(
    (from) =>
      `${from.name.padEnd(8)}${nodes.map((to) => cell(from === to ? "-" : (times.get(`${from.name} ${to.name}`) ?? "lost"))).join("")}`,
  );
  console.log(
    `\n    from \\ to ${nodes
      .map(({ name }) => cell(name))
      .join("")
      .slice(2)}`,
  );
  for (const row of table) console.log(`    ${row}`);
  console.log("");
  judge(
    `pod to pod, all pairs, ${family === "ipv4" ? "IPv4" : "IPv6"}`,
    times.size === pairs.length,
    `${times.size} of ${pairs.length} pairs answer every ping`,
  );
}

/** Pings 200 times a second in both families between two pods while `action` runs, at least `pingCount` packets each. */
async function pingWhile(
  nodes: { readonly from: Node; readonly to: Node },
  name: string,
  action: () => Promise<void>,
): Promise<void> {
  const pod = nodes.from.machine.pod;
  const targets = podAddresses(nodes.to.number);
  const pings = [
    { family: "IPv4", ping: pod.ping(targets.ipv4) },
    { family: "IPv6", ping: pod.ping(targets.ipv6) },
  ];
  say(nodes.from.name, `pings the pod of ${nodes.to.name} 200 times a second`);
  await action();
  await Promise.all(pings.map(({ ping }) => ping.sent(pingCount, 60_000)));
  for (const { family, ping } of pings) {
    const result = await ping.stop();
    judge(`${name}, ${family}`, result.lost === 0 && result.sent >= pingCount, describePing(result));
  }
}

function describePing({ sent, lost, late, maxMs }: PingResult): string {
  return `${sent} pings, ${lost} lost, ${late} of them late, slowest reply ${maxMs.toFixed(1)} ms`;
}

const indent = (text: string): string => text.replaceAll(/^(?=.)/gm, "    ");

async function interfaceIndex(node: Node): Promise<string> {
  return (await node.machine.exec(["cat", "/sys/class/net/clusternet/ifindex"])).trim();
}

async function show(lab: Lab): Promise<void> {
  heading("One Curator, four nodes, a pod behind each");
  const curatorMachine = await lab.machine("curator", { address: curatorAddress, address6: "2001:db8::100" });
  const trust = await LabTrust.create(lab);
  say("pki", "a cluster CA is made; everybody proves to be of this cluster");
  const curatorDirectory = await startCurator(lab, curatorMachine, trust);
  const nodes = await startNodes(lab, trust, 1, 2, 3, 4);
  const [one, two, three, four] = nodes;
  if (one === undefined || two === undefined || three === undefined || four === undefined) {
    throw new Error("four nodes were started");
  }
  await meshOf(nodes);
  const implementation = (await one.status())?.interface.implementation;
  const wireguard = implementation === "kernel" ? "the kernel's WireGuard" : "wireguard-go";
  judge("the mesh is up", true, `4 nodes, 3 peers each, by ${wireguard}`);

  heading("Pod to pod");
  await pingAllPairs(nodes, "ipv4");
  await pingAllPairs(nodes, "ipv6");

  heading(`clusternet status on ${one.name}`);
  console.log(indent(await one.machine.exec([binary, "status", `--data-dir=${one.dataDirectory}`])));

  heading("A fifth node joins and another one is removed, under a running ping");
  await pingWhile({ from: one, to: two }, "0 lost while nodes come and go", async () => {
    const [five] = await startNodes(lab, trust, 5);
    if (five === undefined) throw new Error("a fifth node was started");
    await meshOf([...nodes, five]);
    await five.machine.pod.reach(podAddresses(3).ipv4, { limitMs: 20_000 });
    await tellPeers([...nodes, five]);
    judge("the fifth node takes part", true, "its pod reaches the pod of node-3");
    say("curator", `clusternet node remove ${four.name}`);
    await curatorMachine.exec([binary, "node", "remove", four.name, `--data-dir=${curatorDirectory}`]);
    await meshOf([one, two, three, five]);
    judge("the removed node is out", true, "no other node has it as a peer");
  });

  heading("An agent is stopped and started again, under a running ping");
  await pingWhile({ from: one, to: two }, "0 lost while the agent restarts", async () => {
    const before = await interfaceIndex(one);
    const exit = await one.agent.stop();
    say(one.name, `agent stopped (status ${exit.code}); the mesh stays`);
    // Long enough to show that traffic does not need it.
    const gap = one.machine.pod.ping(podAddresses(3).ipv4);
    await gap.sent(400, 20_000);
    const withoutAgent = await gap.stop();
    judge("the mesh works without the agent", withoutAgent.lost === 0, describePing(withoutAgent));
    processes.push(one.start());
    await waitFor(async () => (await one.status())?.agent.ready, {
      limitMs: 20_000,
      what: "the agent again",
    });
    say(one.name, "agent started again and ready");
    const after = await interfaceIndex(one);
    judge("the agent took over the interface it found", before === after, `index ${before}, now ${after}`);
  });
}

async function main(): Promise<number> {
  await setup("demo");
  if (await isStale()) {
    say("build", "dist/clusternet is missing or older than its sources");
    await build();
  }
  const version = Bun.spawnSync([binary, "--version"]).stdout.toString().trim();
  say("demo", version);
  const lab = await Lab.create();
  try {
    await show(lab);
  } catch (error) {
    judge("the demo ran to its end", false, error instanceof Error ? error.message : String(error));
    for (const process of processes) console.log(indent(process.describe()));
  } finally {
    await lab.dispose();
  }
  heading("Summary");
  for (const { name, good, detail } of verdicts)
    console.log(`${good ? "    ok      " : "    FAILED  "}${name}: ${detail}`);
  const failed = verdicts.filter(({ good }) => !good).length;
  console.log("");
  say(
    "demo",
    failed === 0 ? "all of it held; everything is cleaned up" : `${failed} of ${verdicts.length} FAILED`,
  );
  return failed === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
