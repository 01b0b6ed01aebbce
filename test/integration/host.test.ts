/**
 * The host side on real parts: wg, ip and wireguard-go in network namespaces that the test makes itself.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { systemClock } from "../../src/async.ts";
import type { WantedHost } from "../../src/core/host-plan.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderWgConfig } from "../../src/core/wg-config.ts";
import { createHost, type LinuxHost } from "../../src/host/host.ts";
import { silentLogger } from "../../src/log.ts";
import { hostIn, type HostIn } from "../lab/host-in.ts";
import { Lab } from "../lab/lab.ts";
import type { Namespace } from "../lab/namespace.ts";
import { waitFor } from "../lab/wait.ts";
import { FakeMemory } from "../fakes/host.ts";
import { ownKey, peerOf, privateKeyOf, publicKeyOf, wantedHost } from "../fakes/wanted.ts";

/** A host in a namespace, and every command that was to change something there. */
class Bench {
  readonly namespace: HostIn;
  readonly memory = new FakeMemory();
  readonly changes: string[] = [];
  readonly #number: number;
  host: LinuxHost;

  private constructor(namespace: HostIn, number: number) {
    this.namespace = namespace;
    this.#number = number;
    this.host = this.restarted();
  }

  /** `number`: of this node's key. */
  static async in(namespace: Namespace, number = ownKey): Promise<Bench> {
    const host = await hostIn(lab, namespace);
    const bench = new Bench(host, number);
    await Bun.write(join(host.directory, "private.key"), `${privateKeyOf(number).reveal()}\n`);
    return bench;
  }

  /** The host to a program that was started again. */
  restarted(): LinuxHost {
    const { run, follow, directory, readUnixSockets } = this.namespace;
    this.host = createHost({
      run: (argv, options) => {
        if (!/^(ip -N|ip -o|wg show|wg --version)/.test(argv.join(" "))) this.changes.push(argv.join(" "));
        return run(argv, options);
      },
      follow,
      interfaceName: "clusternet",
      keyFile: join(directory, "private.key"),
      configFile: join(directory, "clusternet.conf"),
      wireguard: "userspace",
      memory: this.memory,
      ourKeys: new Set([publicKeyOf(this.#number)]),
      log: silentLogger,
      clock: systemClock,
      readUnixSockets,
    });
    return this.host;
  }

  /** Everything of the interface, the routes and `lo` that can be wanted, as text. */
  async show(): Promise<string> {
    const { run, sh } = this.namespace;
    const dump = (await run(["wg", "show", "clusternet", "dump"]))
      .split("\n")
      .map((line, index) => {
        const fields = line.split("\t");
        // The private key, and of a peer what traffic changes.
        return (index === 0 ? fields.slice(1) : [...fields.slice(0, 4), fields[7]]).join(" ");
      })
      .toSorted((a, b) => a.localeCompare(b));
    const link = /<([^>]*)> mtu (\d+) .* group (\S+)/.exec(await sh("ip -o link show dev clusternet"));
    return [
      ...dump,
      link?.slice(1).join(" "),
      (await sh("ip -o address show dev lo")).replaceAll(/^.*(inet6? \S+).*$/gm, "$1"),
      await sh("ip -4 route show proto 129"),
      await sh("ip -6 route show proto 129"),
    ].join("\n");
  }

  async index(): Promise<string> {
    return (await this.namespace.sh("ip -o link show dev clusternet")).split(":")[0] ?? "";
  }

  /** Reads and applies; what was done and what was in the way. */
  async apply(wanted: WantedHost): Promise<{ complete: boolean; problems: string[] }> {
    this.changes.length = 0;
    this.host.invalidate();
    const { complete, problems } = await this.host.apply(wanted);
    return { complete, problems: problems.map(({ kind }) => kind) };
  }
}

const fine = { complete: true, problems: [] };
const three = wantedHost({
  peers: [peerOf(2), peerOf(3, { address: "2001:db8::3", prefixes: ["10.192.3.0/24", "fd00:3::/64"] })],
});

/** ID of the session that a process belongs to. */
async function sessionOf(pid: string): Promise<string | undefined> {
  return (await Bun.file(`/proc/${pid}/stat`).text()).replace(/^.*\) /, "").split(" ")[3];
}

/** Nothing lost, and no reply so late that a cut hides behind it: WireGuard queues while it handshakes. */
function expectNothingLost(pinged: string): void {
  expect(pinged).toContain(" 0% packet loss");
  expect(Number(/= [\d.]+\/[\d.]+\/([\d.]+)\//.exec(pinged)?.[1])).toBeLessThan(500);
}

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

describe("one host", () => {
  let bench: Bench;
  let good = "";

  beforeAll(async () => {
    bench = await Bench.in(await lab.alone());
    // A route through it makes IPv6 endpoints reachable to wireguard-go, which sends at once.
    await bench.namespace.sh("ip link add u0 type veth peer name u1");
    await bench.namespace.sh("ip address add 192.0.2.1/24 dev u0");
    await bench.namespace.sh("ip link set u0 up");
    expect(await bench.apply(three)).toEqual(fine);
    good = await bench.show();
  });

  test("shows after the first apply exactly what is wanted", () => {
    const peer3 = `${publicKeyOf(3)} (none) [2001:db8::3]:7838 10.192.3.0/24,fd00:3::/64 off`;
    const peer2 = `${publicKeyOf(2)} (none) 192.0.2.2:7838 10.192.2.0/24 off`;
    expect(
      good
        .split("\n")
        .filter((line) => line.trim() !== "")
        .map((line) => line.trimEnd()),
    ).toEqual([
      ...[`${publicKeyOf(ownKey)} 7838 off`, peer2, peer3].toSorted((a, b) => a.localeCompare(b)),
      "POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP 1420 9",
      "inet 127.0.0.1/8",
      "inet 10.192.1.1/32",
      "inet6 fd00:1::1/128",
      "inet6 ::1/128",
      "10.192.0.0/11 dev clusternet scope link src 10.192.1.1",
      "unreachable 10.192.0.0/11 metric 4294967295",
      "fd00::/16 dev clusternet src fd00:1::1 metric 1024 pref medium",
      "unreachable fd00::/16 dev lo metric 4294967295 pref medium",
    ]);
    expect(bench.host.implementation).toBe("userspace");
  });

  test("needs no command when it is adopted by a program started again", async () => {
    const index = await bench.index();
    bench.restarted();
    expect(await bench.apply(three)).toEqual(fine);
    expect({ changes: bench.changes, index: await bench.index() }).toEqual({ changes: [], index });
  });

  test("has wireguard-go in a session of its own, so that it outlives this process' group", async () => {
    const pid = (await bench.namespace.sh("ss -Hulpn sport = :7838")).match(/pid=(\d+)/)?.[1] ?? "";
    expect(await sessionOf(pid)).not.toBe(await sessionOf("self"));
  });

  test("takes changes one by one", async () => {
    const changed = {
      ...three,
      peers: [peerOf(2, { prefixes: ["10.192.2.0/24", "10.192.22.0/24"] }), ...three.peers.slice(1)],
    };
    expect(await bench.apply(changed)).toEqual(fine);
    expect(bench.changes).toEqual([
      `wg set clusternet peer ${publicKeyOf(2)} allowed-ips 10.192.2.0/24,10.192.22.0/24`,
    ]);
    expect(await bench.apply({ ...changed, peers: changed.peers.slice(0, 1) })).toEqual(fine);
    expect(bench.changes).toEqual([`wg set clusternet peer ${publicKeyOf(3)} remove`]);
    expect(await bench.apply({ ...changed, peers: [peerOf(2, { key: 12 })] })).toEqual(fine);
    expect((await bench.namespace.sh("wg show clusternet allowed-ips")).trim()).toBe(
      `${publicKeyOf(12)}\t10.192.2.0/24`,
    );
    expect(await bench.apply(three)).toEqual(fine);
    expect(await bench.show()).toBe(good);
  });

  test("moves its loopback address and the source of the route without ever losing the route", async () => {
    const moved = { ...three, loopbackAddresses: [parseAddress("10.192.9.1")] };
    expect(await bench.apply(moved)).toEqual(fine);
    expect(await bench.namespace.sh("ip -4 route show proto 129")).toContain("src 10.192.9.1");
    expect(await bench.namespace.sh("ip -6 route show proto 129")).not.toContain("src");
    expect(await bench.apply({ ...three, loopbackAddresses: [] })).toEqual(fine);
    expect(await bench.namespace.sh("ip -4 route show proto 129")).toContain("dev clusternet scope link");
    expect(await bench.apply(three)).toEqual(fine);
    // The address that came back is behind ::1 now, so the order is left out.
    expect((await bench.show()).split("\n").toSorted()).toEqual(good.split("\n").toSorted());
  });

  const peer2 = publicKeyOf(2);
  test.each([
    { name: "the interface is deleted", by: ["ip link delete dev clusternet"] },
    { name: "the interface is renamed", by: ["ip link set dev clusternet name stolen"] },
    {
      name: "the interface is renamed while it is down",
      by: ["ip link set dev clusternet down", "ip link set dev clusternet name stolen"],
    },
    { name: "the interface is set down", by: ["ip link set dev clusternet down"] },
    { name: "the group is changed", by: ["ip link set dev clusternet group 0"] },
    { name: "the MTU is changed", by: ["ip link set dev clusternet mtu 1300"] },
    { name: "an MTU below 1280 took the IPv6 route", by: ["ip link set dev clusternet mtu 1000"] },
    { name: "the port is changed", by: ["wg set clusternet listen-port 7000"] },
    { name: "the key is cleared", by: ["wg set clusternet private-key /dev/null"] },
    { name: "allowed IPs are edited", by: [`wg set clusternet peer ${peer2} allowed-ips 10.192.77.0/24`] },
    { name: "a keepalive is set", by: [`wg set clusternet peer ${peer2} persistent-keepalive 5`] },
    { name: "a peer is removed", by: [`wg set clusternet peer ${peer2} remove`] },
    {
      name: "a peer is added that takes a prefix",
      by: [`wg set clusternet peer ${publicKeyOf(8)} allowed-ips 10.192.2.0/24`],
    },
    { name: "the IPv4 route is deleted", by: ["ip route delete 10.192.0.0/11 dev clusternet"] },
    { name: "the IPv6 route is deleted", by: ["ip -6 route delete fd00::/16 dev clusternet"] },
    {
      name: "the route has no source any more",
      by: ["ip route replace 10.192.0.0/11 dev clusternet proto 129"],
    },
    {
      name: "the guards are deleted",
      by: ["ip route delete unreachable 10.192.0.0/11", "ip -6 route delete unreachable fd00::/16"],
    },
    {
      name: "the IPv4 loopback address is deleted, and with it the route",
      by: ["ip address delete 10.192.1.1/32 dev lo"],
    },
    { name: "the IPv6 loopback address is deleted", by: ["ip address delete fd00:1::1/128 dev lo"] },
    { name: "lo was down, which takes the IPv6 guard", by: ["ip link set lo down", "ip link set lo up"] },
  ])("is put back when $name", async ({ by }) => {
    const before = await bench.index();
    for (const command of by) await bench.namespace.sh(command);
    expect(await bench.apply(three)).toEqual(fine);
    expect((await bench.show()).split("\n").toSorted()).toEqual(good.split("\n").toSorted());
    if (!by.some((command) => command.includes("link delete"))) expect(await bench.index()).toBe(before);
    expect(await bench.apply(three)).toEqual(fine);
    expect(bench.changes).toEqual([]);
  });

  test("is put back when it was renamed while the program was away", async () => {
    const before = await bench.index();
    await bench.namespace.sh("ip link set dev clusternet name stolen");
    bench.restarted();
    expect(await bench.apply(three)).toEqual(fine);
    expect(await bench.index()).toBe(before);
  });

  test("keeps a fwmark that somebody set", async () => {
    await bench.namespace.sh("wg set clusternet fwmark 0x51");
    await bench.namespace.sh(`wg set clusternet peer ${peer2} remove`);
    expect(await bench.apply(three)).toEqual(fine);
    expect(await bench.namespace.sh("wg show clusternet fwmark")).toBe("0x51\n");
    await bench.namespace.sh("wg set clusternet fwmark 0");
  });

  test("gives a hint at once when link, route or address change", async () => {
    const stop = new AbortController();
    let hints = 0;
    const loop = (async () => {
      for await (const _hint of bench.host.hints(stop.signal, () => [])) hints++;
    })();
    const touch = async (command: string): Promise<void> => {
      await bench.namespace.sh(command);
    };
    // The monitor is there once it answers; what is changed before that is not seen.
    await waitFor(async () => {
      await touch("ip link set dev clusternet mtu 1400");
      await touch("ip link set dev clusternet mtu 1420");
      return hints > 0;
    }, "the monitor to be there");
    for (const command of [
      "ip route delete unreachable 10.192.0.0/11",
      "ip address delete fd00:1::1/128 dev lo",
    ]) {
      const before = hints;
      await touch(command);
      await waitFor(() => hints > before, `a hint after ${command}`);
    }
    stop.abort();
    await loop;
    expect(await bench.apply(three)).toEqual(fine);
  });

  test("leaves a foreign route alone and names it", async () => {
    await bench.namespace.sh("ip route delete 10.192.0.0/11 dev clusternet proto 129");
    await bench.namespace.sh("ip route add 10.192.0.0/11 dev u0 proto static");
    expect(await bench.apply(three)).toEqual({ complete: true, problems: ["route-foreign"] });
    expect(await bench.namespace.sh("ip -4 route show 10.192.0.0/11")).toContain("dev u0 proto static");
    await bench.namespace.sh("ip route delete 10.192.0.0/11 dev u0 proto static");
    expect(await bench.apply(three)).toEqual(fine);
  });

  test("never touches the interface of another network namespace whose socket it sees", async () => {
    const neighbour = await Bench.in(await lab.alone({ sharing: bench.namespace.namespace }), 9);
    await neighbour.namespace.sh("ip tuntap add dev clusternet mode tun");
    const other = { ...three, publicKey: publicKeyOf(9), peers: [peerOf(4)] };
    expect(await neighbour.apply(other)).toEqual({ complete: true, problems: ["interface-foreign"] });
    await neighbour.namespace.sh("ip link delete dev clusternet");
    expect((await neighbour.apply(other)).complete).toBe(false);
    expect((await bench.show()).split("\n").toSorted()).toEqual(good.split("\n").toSorted());
  });
});

test("down leaves everything as it was before, foreign things too", async () => {
  const bench = await Bench.in(await lab.alone());
  const { sh } = bench.namespace;
  await sh("ip address add 203.0.113.7/32 dev lo");
  const state = async (): Promise<string[]> =>
    (
      await Promise.all(
        [
          "nft list ruleset",
          "ip rule",
          "ip -6 rule",
          "ip address",
          "ip -d link",
          "ip route show table all",
          "ip -6 route show table all",
        ].map(sh),
      )
    ).map((text) => text.replaceAll(/ (valid|preferred)_lft \S+/g, ""));
  const before = await state();
  expect(await bench.apply(three)).toEqual(fine);
  await sh("ip address add 203.0.113.8/32 dev lo");
  expect(await bench.restarted().down(three)).toMatchObject({ complete: true, problems: [] });
  expect(await sh("ip -o address show dev lo")).toContain("203.0.113.8");
  await sh("ip address delete 203.0.113.8/32 dev lo");
  expect(await state()).toEqual(before);
  bench.changes.length = 0;
  expect(await bench.restarted().down(three)).toMatchObject({ complete: true, problems: [] });
  expect(bench.changes).toEqual([]);
});

test("a foreign interface of our name is left alone, and down leaves it too", async () => {
  const bench = await Bench.in(await lab.alone());
  await bench.namespace.sh("ip link add clusternet type bridge");
  expect(await bench.apply(three)).toEqual({ complete: true, problems: ["interface-foreign"] });
  expect((await bench.host.down(three)).problems.map(({ kind }) => kind)).toEqual(["interface-foreign"]);
  expect(await bench.namespace.sh("ip -d link show dev clusternet")).toContain("bridge");
});

test("a UDP port that is taken is named, and taken over as soon as it is free", async () => {
  const bench = await Bench.in(await lab.alone());
  const code = `await Bun.udpSocket({ port: 7838 }); console.log("bound"); await Bun.sleep(60_000);`;
  const holder = Bun.spawn(
    ["nsenter", "-t", String(bench.namespace.pid), "-n", process.execPath, "-e", code],
    {
      stdin: "ignore",
      stdout: "pipe",
    },
  );
  try {
    await holder.stdout.getReader().read();
    expect(await bench.apply(three)).toEqual({ complete: false, problems: ["port-in-use"] });
    expect(await bench.apply(three)).toEqual({ complete: false, problems: ["port-in-use"] });
  } finally {
    holder.kill("SIGKILL");
    await holder.exited;
  }
  expect(await bench.apply(three)).toEqual(fine);
  expect(await bench.namespace.sh("wg show clusternet listen-port")).toBe("7838\n");
});

test("a first apply takes the file whole, and peer by peer when wg refuses it", async () => {
  const bench = await Bench.in(await lab.alone());
  const file = join(bench.namespace.directory, "clusternet.conf");
  const wanted = { ...three, configWritten: true };
  await Bun.write(
    file,
    renderWgConfig({ listenPort: 7838, mesh: { peers: three.peers } }, privateKeyOf(ownKey)),
  );
  expect(await bench.apply(wanted)).toEqual(fine);
  expect(bench.changes.filter((command) => command.startsWith("wg"))).toEqual([
    `wg syncconf clusternet ${file}`,
  ]);
  const shown = await bench.show();
  await bench.host.down(wanted);
  await Bun.write(file, "[Interface]\n");
  expect((await bench.apply(wanted)).complete).toBe(true);
  expect(await bench.show()).toBe(shown);
});

describe("two hosts", () => {
  let a: Bench;
  let b: Bench;
  const wantedA = wantedHost({ clusterNets: [parsePrefix("10.192.0.0/11")], peers: [peerOf(2)] });
  const wantedB = wantedHost({
    publicKey: publicKeyOf(2),
    clusterNets: [parsePrefix("10.192.0.0/11")],
    peers: [{ ...peerOf(1), publicKey: publicKeyOf(ownKey) }],
    loopbackAddresses: [parseAddress("10.192.2.1")],
  });

  beforeAll(async () => {
    a = await Bench.in((await lab.machine("a", { address: "192.0.2.1" })).namespace);
    b = await Bench.in((await lab.machine("b", { address: "192.0.2.2" })).namespace, 2);
    await a.namespace.sh("ip address add 203.0.113.7/32 dev lo");
    for (const each of [a, b]) {
      await each.namespace.sh("sysctl -q -w net.ipv4.conf.all.rp_filter=1");
      expect(await each.apply(each === a ? wantedA : wantedB)).toEqual(fine);
    }
  });

  const ping = (count: number): Promise<string> =>
    a.namespace.run(["ping", "-q", "-i", "0.005", "-c", String(count), "-W", "1", "10.192.2.1"], {
      timeoutMs: 30_000,
    });

  test("reach each other, with the first pod address as source although lo has another before it", async () => {
    expect(await ping(20)).toContain(" 0% packet loss");
    expect(await a.namespace.sh("ip -4 route get 10.192.2.1")).toContain("src 10.192.1.1");
  });

  test("lose nothing between them while 50 other peers come, change and go", async () => {
    const pinging = ping(300);
    for (let turn = 0; turn < 10; turn++) {
      const others = Array.from({ length: 50 }, (_, index) =>
        peerOf(3 + ((index + turn) % 60), { key: 100 + index }),
      );
      expect(await a.apply({ ...wantedA, peers: [peerOf(2), ...others] })).toEqual(fine);
    }
    expect(await a.apply(wantedA)).toEqual(fine);
    expectNothingLost(await pinging);
  });

  test("leave an endpoint alone that roamed", async () => {
    await b.namespace.sh("wg set clusternet listen-port 40000");
    await b.namespace.sh("ping -q -c 1 -W 5 10.192.1.1");
    const pinging = ping(100);
    for (let resync = 0; resync < 3; resync++) {
      expect(await a.apply(wantedA)).toEqual(fine);
      expect(a.changes).toEqual([]);
    }
    a.restarted();
    expect(await a.apply(wantedA)).toEqual(fine);
    expect(a.changes).toEqual([]);
    expect(await a.namespace.sh("wg show clusternet endpoints")).toContain("192.0.2.2:40000");
    expectNothingLost(await pinging);
  });
});
