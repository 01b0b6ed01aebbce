/**
 * `Service` as the Go package documents it, sentence by sentence and in our words, on real parts: two programs of
 * somebody else, in a project outside of this one (fakes/outside-project.ts), each on a machine of its own with
 * wireguard-go, and a scripted Curator. Differences on purpose say so where they are tested.
 *
 * The tests go on from each other's state, as an operator would.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import { fetchStatus } from "../../src/status-socket.ts";
import { node } from "../fakes/curator.ts";
import { OutsideProject } from "../fakes/outside-project.ts";
import { clusterNets, podOf, scriptedCurator } from "../lab/agent.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import type { LabProcess } from "../lab/process.ts";
import { waitFor } from "../lab/wait.ts";

interface Route {
  readonly dst: string;
  readonly dev?: string;
  readonly type?: string;
  readonly prefsrc?: string;
}

/** The program on a machine, and what it is told. */
class User {
  readonly machine: Machine;
  readonly dataDirectory: string;
  readonly #control: string;
  readonly #start: () => LabProcess;
  process: LabProcess;

  constructor(machine: Machine, folder: string, curator: string, program: string) {
    this.machine = machine;
    this.dataDirectory = join(folder, machine.name);
    this.#control = join(folder, `${machine.name}.sock`);
    const flags = {
      "--curator": curator,
      "--node-id": machine.name,
      "--data-dir": this.dataDirectory,
      "--control": this.#control,
    };
    this.#start = () =>
      machine.spawn([
        process.execPath,
        program,
        ...Object.entries(flags).flat(),
        ...clusterNets.flatMap((each) => ["--cluster-net", each]),
      ]);
    this.process = this.#start();
  }

  start(): void {
    this.process = this.#start();
  }

  async set(wanted: {
    readonly podNetwork?: readonly string[] | null;
    readonly network?: string | null;
  }): Promise<void> {
    const answer = await fetch("http://user/", {
      unix: this.#control,
      method: "POST",
      body: JSON.stringify(wanted),
    });
    if (!answer.ok) throw new Error(`Cannot set ${JSON.stringify(wanted)}: ${await answer.text()}`);
  }

  async running(): Promise<void> {
    await this.until(async () => {
      const fetched = await fetchStatus(join(this.dataDirectory, "clusternet.sock"), 2000);
      return fetched.kind === "status" && fetched.status.agent.ready;
    }, "a mesh that is applied");
  }

  async until<T>(look: () => Promise<T | undefined | false>, what: string): Promise<T> {
    return await waitFor(look, { limitMs: 15_000, what, detail: () => this.process.describe() });
  }

  /** Allowed IPs by public key. */
  async peers(): Promise<ReadonlyMap<string, readonly string[]>> {
    const shown = await this.machine.exec(["wg", "show", "clusternet", "allowed-ips"]);
    return new Map(
      shown
        .trim()
        .split("\n")
        .filter((line) => line !== "")
        .map((line) => {
          const [key = "", prefixes = ""] = line.split("\t");
          return [key, prefixes.split(" ").toSorted()];
        }),
    );
  }

  /** Routes of one family, of all tables and types. */
  async routes(family: "-4" | "-6"): Promise<readonly Route[]> {
    return JSON.parse(
      await this.machine.exec(["ip", "-j", family, "route", "show", "table", "all"]),
    ) as Route[];
  }

  async routeTo(address: string): Promise<Route | undefined> {
    return (JSON.parse(await this.machine.exec(["ip", "-j", "route", "get", address])) as Route[])[0];
  }

  /** Addresses on `lo` beyond the usual. */
  async loopback(): Promise<readonly string[]> {
    const links = JSON.parse(await this.machine.exec(["ip", "-j", "address", "show", "dev", "lo"])) as {
      addr_info: { local: string; prefixlen: number }[];
    }[];
    return links
      .flatMap(({ addr_info }) => addr_info)
      .map(({ local, prefixlen }) => `${local}/${prefixlen}`)
      .filter((each) => each !== "127.0.0.1/8" && each !== "::1/128")
      .toSorted();
  }

  async publicKey(): Promise<string> {
    return (await this.machine.exec(["wg", "show", "clusternet", "public-key"])).trim();
  }
}

/** A node that nobody runs, with a key of this one byte. */
function stranger(byte: number): { readonly key: string; readonly shown: Uint8Array } {
  const key = new Uint8Array(32).fill(byte).toBase64();
  return { key, shown: node({ id: "c", key, address: "192.0.2.9", prefixes: ["10.192.3.0/24"] }) };
}

describe("Service, as documented", () => {
  let lab: Lab;
  let outside: OutsideProject;
  let curator: Awaited<ReturnType<typeof scriptedCurator>>;
  let a: User;
  let b: User;

  /** The prefixes of the last announcement of a node. */
  const announced = async (id: string): Promise<readonly string[] | undefined> => {
    const { announcements } = await curator.call.seen();
    return announcements.findLast(({ nodeId, code }) => nodeId === id && code === 0)?.prefixes.toSorted();
  };
  const announcementsOf = async (id: string): Promise<number> =>
    (await curator.call.seen()).announcements.filter(({ nodeId }) => nodeId === id).length;
  const untilAnnounced = async (id: string, prefixes: readonly string[]): Promise<void> => {
    const wanted = prefixes.toSorted().join();
    await a.until(async () => (await announced(id))?.join() === wanted, `announcement ${wanted} of "${id}"`);
  };

  beforeAll(async () => {
    outside = await OutsideProject.create();
    const text = await readFile(join(import.meta.dir, "../fakes/library-user.ts"), "utf8");
    const program = await outside.write("library-user.ts", text.replace("../../src/index.ts", "clusternet"));
    lab = await Lab.create();
    curator = await scriptedCurator(lab);
    const folder = await lab.directory();
    const machines = {
      a: await lab.machine("a", { pod: podOf(1) }),
      b: await lab.machine("b", { pod: podOf(2) }),
    };
    for (const { name, address } of Object.values(machines)) {
      await curator.call.put(node({ id: name, address }));
    }
    a = new User(machines.a, folder, curator.address, program);
    b = new User(machines.b, folder, curator.address, program);
    await Promise.all([a.running(), b.running()]);
  }, 120_000);
  afterAll(async () => {
    await curator?.[Symbol.asyncDispose]();
    await lab?.dispose();
    await outside?.[Symbol.asyncDispose]();
  });

  test("keeps this node's WireGuard key in the data directory, and tells nobody else", async () => {
    const file = join(a.dataDirectory, "private.key");
    const key = (await readFile(file, "utf8")).trim();
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    expect((await a.machine.exec(["wg", "show", "clusternet", "private-key"])).trim()).toBe(key);
    expect(a.process.stderr).not.toContain(key);
  });

  test("routes ClusterNet into the mesh ahead of any prefix, by one route a family", async () => {
    for (const [family, net] of [
      ["-4", "10.192.0.0/11"],
      ["-6", "fd10:c1::/32"],
    ] as const) {
      const routes = await a.routes(family);
      const real = routes.filter(({ dev, type = "unicast" }) => dev === "clusternet" && type === "unicast");
      // The kernel's own link-local network is on every interface that is up.
      expect(real.map(({ dst }) => dst).filter((dst) => dst !== "fe80::/64")).toEqual([net]);
      // Different on purpose: a guard behind it, for the time that the interface is away.
      expect(routes.filter(({ type }) => type === "unreachable").map(({ dst }) => dst)).toEqual([net]);
    }
    expect((await a.routeTo("10.223.255.254"))?.dev).toBe("clusternet");
  });

  test("announces no prefix before one is known", async () => {
    // Different on purpose: the key is announced at once, so that other nodes know this one.
    await untilAnnounced("a", []);
  });

  test("watches the local pod network: what is set later is announced into the mesh", async () => {
    await a.set({ podNetwork: podOf(1).map(({ prefix }) => prefix) });
    await untilAnnounced("a", ["10.192.1.0/24", "fd10:c1:0:1::/64"]);
    await b.set({ podNetwork: podOf(2).map(({ prefix }) => prefix) });
    await untilAnnounced("b", ["10.192.2.0/24", "fd10:c1:0:2::/64"]);
  });

  test("takes the node's address from the network status and announces it as one host", async () => {
    await b.set({ network: b.machine.address });
    await untilAnnounced("b", ["192.0.2.3/32", "10.192.2.0/24", "fd10:c1:0:2::/64"]);
    await a.set({ network: a.machine.address });
    await untilAnnounced("a", ["192.0.2.2/32", "10.192.1.0/24", "fd10:c1:0:1::/64"]);
  });

  test("pulls what other nodes announce and makes WireGuard peers of them", async () => {
    const keyOfB = await b.publicKey();
    const wanted = new Map([[keyOfB, ["10.192.2.0/24", "192.0.2.3/32", "fd10:c1:0:2::/64"]]]);
    await a.until(async () => Bun.deepEquals(await a.peers(), wanted), "b as the only peer of a");
  });

  test("is a mesh: the pods of all nodes reach each other, in both families", async () => {
    for (const { address } of podOf(2)) await a.machine.pod.reach(address, { limitMs: 10_000 });
    for (const { address } of podOf(1)) await b.machine.pod.reach(address, { limitMs: 10_000 });
  });

  test("gives the host the first address of each pod prefix, which the kernel takes as source into ClusterNet", async () => {
    await a.until(
      async () => (await a.loopback()).join() === "10.192.1.1/32,fd10:c1:0:1::1/128",
      "first addresses on lo",
    );
    expect((await a.routeTo("10.192.2.2"))?.prefsrc).toBe("10.192.1.1");
    expect((await a.routeTo("fd10:c1:0:2::2"))?.prefsrc).toBe("fd10:c1:0:1::1");
    for (const { address } of podOf(2)) await a.machine.reach(address, { limitMs: 10_000 });
  });

  test("lets other hosts in by their own address, whose way back is not the mesh's", async () => {
    expect(await a.peers().then((peers) => [...peers.values()].flat())).toContain("192.0.2.3/32");
    expect((await a.routeTo(b.machine.address))?.dev).toBe("eth0");
    // Only the mesh leads from b to a's pods, so the request came through it.
    await b.machine.reach("10.192.1.2", { limitMs: 10_000, source: b.machine.address });
  });

  test("announces every change of the pod network, and takes the old address back from lo", async () => {
    await a.set({ podNetwork: ["10.192.7.0/24"] });
    await untilAnnounced("a", ["192.0.2.2/32", "10.192.7.0/24"]);
    await a.until(async () => (await a.loopback()).join() === "10.192.7.1/32", "only 10.192.7.1 on lo");
  });

  test("announces nothing again when what is set is the same as before", async () => {
    const before = await announcementsOf("a");
    await a.set({ podNetwork: ["10.192.7.0/24"], network: "192.0.2.2" });
    await a.set({ podNetwork: ["10.192.8.0/24"] });
    await untilAnnounced("a", ["192.0.2.2/32", "10.192.8.0/24"]);
    expect(await announcementsOf("a")).toBe(before + 1);
  });

  test("takes a pod network that is cleared out of the announcement and of lo", async () => {
    await a.set({ podNetwork: null });
    await untilAnnounced("a", ["192.0.2.2/32"]);
    await a.until(async () => (await a.loopback()).length === 0, "nothing on lo");
  });

  test("announces an IPv6 address as /128 (Go: /32, a network of 2^96 addresses)", async () => {
    await a.set({ network: "2001:DB8:0:0:0:0:0:2" });
    await untilAnnounced("a", ["2001:db8::2/128"]);
    await a.set({ network: null });
    await untilAnnounced("a", []);
  });

  test("tries an announcement that was refused again until the Curator takes it, by then the newest", async () => {
    await curator.call.refuseAnnouncements({ code: 14, message: "not now" });
    const before = await announcementsOf("a");
    await a.set({ podNetwork: ["10.192.6.0/24"] });
    await a.until(async () => (await announcementsOf("a")) > before + 1, "a second try");
    await a.set({ podNetwork: ["10.192.1.0/24"], network: a.machine.address });
    await curator.call.refuseAnnouncements();
    await untilAnnounced("a", ["192.0.2.2/32", "10.192.1.0/24"]);
  });

  test("follows changes of other nodes: a new one, its new key, its end", async () => {
    const keyOfB = await b.publicKey();
    const ofB = (await a.peers()).get(keyOfB) ?? [];
    const untilPeers = async (
      ...wanted: readonly (readonly [string, readonly string[]])[]
    ): Promise<void> => {
      await a.until(
        async () => Bun.deepEquals(await a.peers(), new Map(wanted)),
        `peers ${JSON.stringify(wanted)}`,
      );
    };
    for (const { key, shown } of [stranger(7), stranger(9)]) {
      await curator.call.put(shown);
      await untilPeers([keyOfB, ofB], [key, ["10.192.3.0/24"]]);
    }
    await curator.call.remove("c");
    await untilPeers([keyOfB, ofB]);
  });

  test("runs until its signal aborts, then returns and lets the program end; the mesh stays", async () => {
    const key = await a.publicKey();
    const before = await announced("a");
    expect(await a.process.stop()).toEqual({ code: 0, signal: undefined });
    expect(a.process.stdout).toBe("returned\n");
    expect(await a.publicKey()).toBe(key);
    expect(await announced("a")).toEqual(before);
    await b.machine.reach("10.192.1.2", { limitMs: 10_000 });
  });

  test("run again it has the same key and the same interface", async () => {
    const key = await a.publicKey();
    const index = await a.machine.exec(["cat", "/sys/class/net/clusternet/ifindex"]);
    a.start();
    await a.running();
    expect(await a.publicKey()).toBe(key);
    expect(await a.machine.exec(["cat", "/sys/class/net/clusternet/ifindex"])).toBe(index);
  });

  test("does not run without a key that can be kept", async () => {
    await a.process.stop();
    const file = join(a.dataDirectory, "private.key");
    await a.machine.exec(["mv", file, `${file}.aside`]);
    await mkdir(file);
    a.start();
    expect(await a.process.exited).toEqual({ code: 1, signal: undefined });
    expect(a.process.stdout).toStartWith(`Cannot use private key "${file}"`);
  });
});
