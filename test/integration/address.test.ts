/**
 * What a node is known by: its external address as it moves, and the loopback addresses of its pod prefixes, through
 * the executable on real interfaces. The Curator is scripted and judges as Metropolis' does.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { NodeState, NodeStatus } from "../../src/gen/common.ts";
import { Node } from "../../src/gen/curator.ts";
import { RemoteCurator } from "../fakes/remote-curator.ts";
import { Agent, executable } from "../lab/agent.ts";
import { Cluster } from "../lab/cluster.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { freshMachine, soonMs } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** What a change may take until the Curator has it. */
const announcedMs = 2_000;

/** A Curator of Metropolis' kind on a machine of its own, in both families. */
async function metropolis(): Promise<RemoteCurator & { readonly machine: Machine; readonly port: number }> {
  const machine = await freshMachine(lab, "real");
  const prefix = ["nsenter", "-t", String(machine.namespace.pid), "-n", "-m", "--"];
  const curator = await RemoteCurator.start({ listen: "[::]:7835", prefix });
  await curator.call.judgeAsMetropolis(true);
  return Object.assign(curator, { machine, port: 7835 });
}

/** A field that no program of today knows: number 31, three bytes. */
const unknownField = Uint8Array.of(0xfa, 0x01, 3, 1, 2, 3);
const statusBefore = Buffer.concat([
  NodeStatus.encode(
    NodeStatus.fromPartial({ externalAddress: "192.0.2.99", runningCurator: { port: 7835 } }),
  ).finish(),
  unknownField,
]);

function nodeWithStatus(id: string, status: Uint8Array): Uint8Array {
  return Node.encode(Node.fromPartial({ id, state: NodeState.UP, status })).finish();
}

describe("--external-address auto", () => {
  test("is found on a foreign interface that bears the name of ours, which is left alone", async () => {
    await using curator = await metropolis();
    const machine = await freshMachine(lab, "a");
    await curator.call.put(nodeWithStatus("a", statusBefore));
    await using agent = await Agent.start(machine, {
      curator: `${curator.machine.address}:7835`,
      directory: await lab.directory(),
      nodeId: "a",
      externalAddress: "auto",
      interfaceName: "eth0",
      flags: ["--report-status", "on"],
    });
    const status = await agent.status(({ node }) => node.announcedAt !== null, soonMs);
    expect([status.node.externalAddress, status.node.announced]).toEqual([
      machine.address,
      [`${machine.address}/32`],
    ]);
    expect(status.problems.map(({ kind }) => kind)).toContain("interface-foreign");
  });

  test.each([4, 6])("follows the address of the route to the Curator within 2 s (IPv%p)", async (family) => {
    await using curator = await metropolis();
    const machine = await freshMachine(lab, "a");
    const [first, net, bits] =
      family === 4
        ? ([machine.address, "192.0.2", 32] as const)
        : ([machine.address6, "2001:db8:", 128] as const);
    const number = (at: number): string => (family === 4 ? `${net}.${at}` : `${net}:${at}`);
    const length = family === 4 ? "24" : "64 nodad";
    await curator.call.put(nodeWithStatus("a", statusBefore));
    const to = family === 4 ? curator.machine.address : `[${curator.machine.address6}]`;
    await using agent = await Agent.start(machine, {
      curator: `${to}:7835`,
      directory: await lab.directory(),
      nodeId: "a",
      externalAddress: "auto",
      pod: [{ prefix: "10.192.1.0/24", address: "10.192.1.2" }],
      // The kernel's word must do.
      flags: ["--resync", "600", "--report-status", "on"],
    });
    const announced = async (address: string, sinceMs: number): Promise<number> =>
      await waitFor(
        async () => {
          const { announcements } = await curator.call.seen();
          const last = announcements.findLast(({ code }) => code === 0);
          return last?.prefixes.join() === `${address}/${bits},10.192.1.0/24` && last.at - sinceMs;
        },
        { limitMs: soonMs, what: `announcement of ${address}`, detail: () => agent.process.describe() },
      );
    await announced(first, Date.now());
    expect((await agent.status(() => true, soonMs)).node.externalAddress).toBe(first);

    // Without it the kernel drops all addresses of a network together with the first.
    await machine.exec(["sysctl", "-q", "-w", "net.ipv4.conf.all.promote_secondaries=1"]);
    // A second good address changes nothing, nor does the route that prefers it.
    await machine.ip(`address add ${number(201)}/${length} dev eth0`);
    const reports = (await curator.call.seen()).statusReports.length;
    const before = (await curator.call.seen()).announcements.length;
    const route = family === 4 ? "route" : "-6 route";
    await machine.exec([
      "ip",
      ...`${route} replace ${to.replace(/[[\]]/g, "")} dev eth0 src ${number(201)}`.split(" "),
    ]);
    await machine.ip(`address add ${number(202)}/${length} dev eth0`);

    const sinceMs = Date.now();
    await machine.ip(`address delete ${first}/${length.split(" ")[0]} dev eth0`);
    const tookMs = await announced(number(201), sinceMs);
    const seen = await curator.call.seen();
    // One change, one report, one announcement.
    expect(seen.announcements.slice(before).map(({ prefixes }) => prefixes[0])).toEqual([
      `${number(201)}/${bits}`,
    ]);
    expect(seen.statusReports.slice(reports).map(({ externalAddress }) => externalAddress)).toEqual([
      number(201),
    ]);
    expect(tookMs).toBeLessThan(announcedMs);
    // All the rest that the cluster knows of this node's status is as it was.
    const { status } = seen.statusReports.at(-1) ?? { status: new Uint8Array() };
    expect(NodeStatus.decode(status)).toMatchObject({
      externalAddress: number(201),
      runningCurator: { port: 7835 },
    });
    expect(Buffer.from(status).includes(unknownField)).toBe(true);

    // All gone, as long as the waits between tries have become: back within 2 s all the same.
    await machine.exec(["ip", "address", "flush", "dev", "eth0", "scope", "global"]);
    await agent.status(({ node }) => node.externalAddress === null, soonMs);
    // Over IPv6 a link-local address is left to ask the Curator from.
    if (family === 4) {
      await agent.status(
        ({ problems }) => problems.some(({ kind }) => kind === "curator-unreachable"),
        soonMs,
      );
    }
    const backMs = Date.now();
    await machine.ip(`address add ${number(203)}/${length} dev eth0`);
    const backTookMs = await announced(number(203), backMs);
    expect(backTookMs).toBeLessThan(announcedMs);
    console.log(`address: one after none was announced after ${backTookMs} ms (IPv${family})`);
    console.log(`address: a change was announced after ${tookMs} ms (IPv${family})`);
  });
});

describe("pod prefixes", () => {
  test("that the Curator refuses are reported one by one, once, and the others announced", async () => {
    await using curator = await metropolis();
    const machine = await freshMachine(lab, "a");
    const [good, bad] = [
      ["10.192.1.0/24", "10.192.2.0/24"],
      ["fd10:c1:0:1::/64", "fd10:c1:0:2::/64"],
    ];
    await using agent = await Agent.start(machine, {
      curator: `${curator.machine.address}:7835`,
      directory: await lab.directory(),
      nodeId: "a",
      flags: ["--report-status", "on", ...[...bad, ...good].flatMap((prefix) => ["--pod-prefix", prefix])],
    });
    const status = await agent.status(({ problems }) => problems.length === 2, soonMs);
    expect(
      status.problems.map(({ kind, nodeId, message }) => [kind, nodeId, message.split(":", 1)[0]]),
    ).toEqual(["fd10", "fd10"].map((start) => ["announce-refused", "a", `Cannot announce prefix ${start}`]));
    const wanted = [`${machine.address}/32`, ...good];
    expect(status.node.announced).toEqual(wanted);
    const { announcements } = await curator.call.seen();
    expect(announcements.map(({ code }) => code).filter((code) => code !== 9)).toEqual([3, 0, 3, 3]);
    expect(announcements.findLast(({ code }) => code === 0)?.prefixes).toEqual(wanted);
    const logged = agent.process.lines.filter(({ text }) => text.includes("announce-refused"));
    expect(logged).toHaveLength(2);
  });

  test("of which our Curator refuses one of a hundred are announced but for that one", async () => {
    await using cluster = await Cluster.create(lab);
    const directory = await lab.directory();
    const start = async (nodeId: string, prefixes: readonly string[]): Promise<Agent> =>
      await Agent.start(await freshMachine(lab, nodeId.slice(0, 4)), {
        curator: cluster.address,
        directory,
        nodeId,
        flags: ["--report-status", "on", ...prefixes.flatMap((prefix) => ["--pod-prefix", prefix])],
      });
    await using first = await start("first", ["10.193.77.128/25"]);
    await first.status(({ node }) => node.announcedAt !== null, soonMs);
    const hundred = Array.from({ length: 100 }, (_, at) => `10.193.${at}.0/24`);
    await using second = await start("second", hundred);
    const { node, problems } = await second.status(({ problems }) => problems.some(isRefusal), soonMs);
    expect(problems.filter(isRefusal).map(({ nodeId, message }) => [nodeId, message])).toEqual([
      [
        "second",
        expect.stringMatching(
          /^Cannot announce prefix 10\.193\.77\.0\/24: .* overlaps 10\.193\.77\.128\/25 of node "first"; .*clusternet node remove --data-dir \S+ first/,
        ),
      ],
    ]);
    const rest = hundred.filter((prefix) => prefix !== "10.193.77.0/24");
    expect(node.announced).toEqual([`${second.machine.address}/32`, ...rest]);
    const held = (await cluster.nodeList()).find(({ id }) => id === "second");
    expect(held?.prefixes.toSorted()).toEqual(node.announced?.toSorted());
  });

  test("of one address, of two, and whose address is there already, give what is theirs to lo and take nothing else", async () => {
    await using curator = await metropolis();
    const machine = await freshMachine(lab, "a");
    // As a bridge for containers has it, and as somebody has put it on lo.
    await machine.ip(
      "link add cni0 type bridge",
      "address add 10.192.8.1/24 dev cni0",
      "address add 10.192.9.1/32 dev lo",
      "address add fd10:c1:0:9::1/128 dev lo",
    );
    const own = ["10.192.5.7/32", "10.192.6.9/32", "10.192.7.1/32", "10.192.8.1/32"];
    const own6 = ["fd10:c1:0:5::7/128", "fd10:c1:0:6::9/128", "fd10:c1:0:7::1/128"];
    const there = ["10.192.9.1/32", "fd10:c1:0:9::1/128"];
    const prefixes = [
      "10.192.5.7/32",
      "10.192.6.8/31",
      "10.192.7.0/30",
      "10.192.8.0/24",
      "10.192.9.0/24",
      "fd10:c1:0:5::7/128",
      "fd10:c1:0:6::8/127",
      "fd10:c1:0:7::/64",
      "fd10:c1:0:9::/64",
    ];
    const options = (pods: readonly string[]): Parameters<typeof Agent.start>[1] => ({
      curator: `${curator.machine.address}:7835`,
      directory,
      nodeId: "a",
      flags: ["--report-status", "on", ...pods.flatMap((prefix) => ["--pod-prefix", prefix])],
    });
    const loopback = async (): Promise<readonly string[]> => {
      const shown = JSON.parse(await machine.exec(["ip", "-j", "address", "show", "dev", "lo"])) as {
        addr_info: { local: string; prefixlen: number }[];
      }[];
      return shown
        .flatMap(({ addr_info }) => addr_info.map(({ local, prefixlen }) => `${local}/${prefixlen}`))
        .filter((text) => text !== "127.0.0.1/8" && text !== "::1/128")
        .toSorted();
    };
    const shows = async (wanted: readonly string[]): Promise<void> => {
      await waitFor(async () => Bun.deepEquals(await loopback(), wanted.toSorted()), {
        limitMs: soonMs,
        what: `${wanted.join(" ")} on lo`,
      });
    };
    const directory = await lab.directory();
    await using agent = await Agent.start(machine, options(prefixes));
    await shows([...own, ...own6, ...there]);
    const route = async (family: "-4" | "-6"): Promise<string> =>
      await machine.exec(["ip", family, "route", "show", "proto", "129", "dev", "clusternet"]);
    expect([await route("-4"), await route("-6")]).toEqual([
      expect.stringContaining(" src 10.192.5.7 "),
      expect.stringContaining(" src fd10:c1:0:5::7 "),
    ]);
    // Killed: what it added is known to the next one, which wants less.
    await agent.kill();
    await using second = await Agent.start(
      machine,
      options(["10.192.6.8/31", "10.192.9.0/24", "fd10:c1:0:7::/64"]),
    );
    await shows(["10.192.6.9/32", "fd10:c1:0:7::1/128", ...there]);
    await second.process.stop();
    await machine.exec([executable, "down", "--data-dir", second.dataDirectory]);
    await shows(there);
    expect(await machine.exec(["ip", "-o", "address", "show", "dev", "cni0"])).toContain("10.192.8.1/24");
  });
});

function isRefusal({ kind }: { readonly kind: string }): boolean {
  return kind === "announce-refused";
}
