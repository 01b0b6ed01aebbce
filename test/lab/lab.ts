/**
 * A network in a box: machines on one underlay, each with "pods" behind it, all in namespaces.
 *
 *     await using lab = await Lab.create();
 *     const a = await lab.machine("a", { pod: [{ prefix: "10.192.1.0/24", address: "10.192.1.2" }] });
 *     const agent = a.spawn([clusternet, "run", …]);
 *     await agent.waitForLine(/ready/, { limitMs: 10_000 });
 *     const ping = a.pod.ping("10.192.2.2");
 *
 * The network namespace of the caller is never touched. Disposing of the lab ends every process in it and
 * removes its directories; so do SIGINT, SIGTERM and the exit of the caller, and what a killed
 * caller left behind goes when the next lab is made. Needs root, iproute2, iputils-ping and nftables.
 */
import { mkdtemp } from "node:fs/promises";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
import { Namespace } from "./namespace.ts";
import { Recorder } from "./recorder.ts";
import { newMark, removeLab, removeOrphanedLabs } from "./remains.ts";

/** One address family of the pods behind a machine. */
export interface PodNetwork {
  /** The pod prefix of the node, as in `--pod-prefix`; the machine routes it to the pod. */
  readonly prefix: string;
  /** The pod's address inside it: not the first one, which the agent puts on the machine's `lo`. */
  readonly address: string;
}

export interface MachineOptions {
  /** Makes a pod namespace behind the machine. */
  readonly pod?: readonly PodNetwork[];
  /** Addresses on the underlay. Default: the next of 192.0.2.0/24 and of 2001:db8::/64, the same number in both. */
  readonly address?: string;
  readonly address6?: string;
}

/** Puts back what was cut. */
export interface Cut {
  restore(): Promise<void>;
}

/** The device of every machine on the underlay. */
export const underlayDevice = "eth0";

/** The pod's way out; both are link-local, so that they are in nobody's prefix. */
const gateway = { ipv4: "169.254.1.1", ipv6: "fe80::1" };

export class Machine {
  readonly name: string;
  /** Addresses on the underlay. */
  readonly address: string;
  readonly address6: string;
  readonly namespace: Namespace;
  readonly #pod: Namespace | undefined;

  constructor(parts: {
    readonly name: string;
    readonly address: string;
    readonly address6: string;
    readonly namespace: Namespace;
    readonly pod: Namespace | undefined;
  }) {
    this.name = parts.name;
    this.address = parts.address;
    this.address6 = parts.address6;
    this.namespace = parts.namespace;
    this.#pod = parts.pod;
  }

  /** The pod behind this machine. */
  get pod(): Namespace {
    if (this.#pod === undefined) throw new Error(`Machine "${this.name}" was made without a pod`);
    return this.#pod;
  }

  spawn: Namespace["spawn"] = (argv, options) => this.namespace.spawn(argv, options);
  run: Namespace["run"] = (argv, options) => this.namespace.run(argv, options);
  exec: Namespace["exec"] = (argv, options) => this.namespace.exec(argv, options);
  ip: Namespace["ip"] = (...commands) => this.namespace.ip(...commands);
  ping: Namespace["ping"] = (target, options) => this.namespace.ping(target, options);
  reach: Namespace["reach"] = (target, options) => this.namespace.reach(target, options);
}

export class Lab {
  /** Names the lab and its owner; see remains.ts. */
  readonly mark: string;
  /** The bridge that all machines are plugged into: for tcpdump and the like. */
  readonly underlay: Namespace;
  readonly #machines = new Map<string, Machine>();
  readonly #namespaces: Namespace[] = [];
  readonly #endings: (() => void)[] = [];
  #lastNumber = 0;
  #disposed = false;

  private constructor(mark: string, underlay: Namespace) {
    this.mark = mark;
    this.underlay = underlay;
    this.#namespaces.push(underlay);
    const end = (): void => removeLab(mark);
    process.on("exit", end);
    this.#endings.push(() => process.off("exit", end));
    for (const signal of ["SIGINT", "SIGTERM"] as const) {
      // Its exit handlers, the one above among them, do the work.
      const leave = (): void => process.exit(128 + constants.signals[signal]);
      process.on(signal, leave);
      this.#endings.push(() => process.off(signal, leave));
    }
  }

  /** Makes an underlay without machines, after removing what labs of dead owners left. */
  static async create(): Promise<Lab> {
    if (process.getuid?.() !== 0) throw new Error("Cannot make network namespaces: not root");
    for (const program of ["ip", "ping", "nft", "nsenter", "unshare"]) {
      if (Bun.which(program) === null)
        throw new Error(`Cannot make a lab: program "${program}" is not installed`);
    }
    removeOrphanedLabs();
    const mark = newMark();
    try {
      const underlay = await Namespace.create("underlay", mark);
      const lab = new Lab(mark, underlay);
      // Multicast snooping would hold back the neighbour discovery of IPv6 until a querier shows up.
      await underlay.ip(
        "link add bridge type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        "link set bridge up",
      );
      await underlay.exec(["nft", "-f", "-"], {
        stdin: "table bridge lab {\nchain cut {\ntype filter hook forward priority 0;\n}\n}\n",
      });
      return lab;
    } catch (error) {
      removeLab(mark);
      throw error;
    }
  }

  /** Adds a machine. Its port on the underlay is called `to-NAME`. */
  async machine(name: string, options: MachineOptions = {}): Promise<Machine> {
    if (!/^[a-z0-9-]{1,12}$/.test(name) || this.#machines.has(name)) {
      throw new Error(`Cannot add machine "${name}": expected a new name of 1 to 12 of a-z, 0-9 and dash`);
    }
    // Taken before anything is waited for: machines may be added side by side.
    const number = ++this.#lastNumber;
    const address = options.address ?? `192.0.2.${number}`;
    const address6 = options.address6 ?? `2001:db8::${number.toString(16)}`;
    const namespace = await this.#namespace(name);
    await this.underlay.ip(
      `link add name ${portOf(name)} type veth peer name ${underlayDevice} netns ${namespace.pid}`,
      `link set dev ${portOf(name)} master bridge up`,
    );
    await namespace.ip(
      `link set ${underlayDevice} up`,
      `address add ${address}/24 dev ${underlayDevice}`,
      `address add ${address6}/64 dev ${underlayDevice} nodad`,
    );
    const pod = options.pod === undefined ? undefined : await this.#pod(name, namespace, options.pod);
    const machine = new Machine({ name, address, address6, namespace, pod });
    this.#machines.set(name, machine);
    return machine;
  }

  /** Adds a namespace that is on no network. `sharing`: it sees the files of that one. */
  async alone({ sharing }: { readonly sharing?: Namespace } = {}): Promise<Namespace> {
    return this.#namespace(`alone-${this.#namespaces.length}`, sharing);
  }

  /** Drops every packet between two machines, in both directions, without either link going down. */
  async cut(one: Machine, other: Machine): Promise<Cut> {
    return this.#drop([
      `iifname "${portOf(one.name)}" oifname "${portOf(other.name)}"`,
      `iifname "${portOf(other.name)}" oifname "${portOf(one.name)}"`,
    ]);
  }

  /** Drops every packet from and to a machine, as if its host were gone: no link goes down, nobody is told. */
  async isolate(machine: Machine): Promise<Cut> {
    return this.#drop([`iifname "${portOf(machine.name)}"`, `oifname "${portOf(machine.name)}"`]);
  }

  /** A new empty directory, mode 0700, removed with the lab. */
  async directory(): Promise<string> {
    return mkdtemp(join(tmpdir(), `${this.mark}-`));
  }

  /** A directory for the front of PATH that records the calls of `wg` and `ip`. */
  async recorder(): Promise<Recorder> {
    return Recorder.create(await this.directory());
  }

  /** Ends everything in the lab and removes its directories. Once is enough, more do no harm. */
  async dispose(): Promise<void> {
    if (this.#disposed) return;
    this.#disposed = true;
    try {
      removeLab(this.mark);
      await Promise.all(this.#namespaces.map((namespace) => namespace.release()));
    } finally {
      for (const end of this.#endings) end();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  async #namespace(name: string, sharing?: Namespace): Promise<Namespace> {
    const namespace = await Namespace.create(name, this.mark, sharing);
    this.#namespaces.push(namespace);
    return namespace;
  }

  async #pod(name: string, machine: Namespace, networks: readonly PodNetwork[]): Promise<Namespace> {
    const pod = await this.#namespace(`${name}-pod`);
    await machine.ip(
      `link add pod type veth peer name ${underlayDevice} netns ${pod.pid}`,
      "link set pod up",
      `address add ${gateway.ipv4}/32 dev pod`,
      `address add ${gateway.ipv6}/64 dev pod nodad`,
      ...networks.map(({ prefix }) => `route add ${prefix} dev pod`),
    );
    await pod.ip(
      `link set ${underlayDevice} up`,
      ...networks.map(({ address }) => `address add ${address} dev ${underlayDevice}`),
      `route add default via ${gateway.ipv4} dev ${underlayDevice} onlink`,
      `route add default via ${gateway.ipv6} dev ${underlayDevice}`,
    );
    return pod;
  }

  async #drop(matches: readonly string[]): Promise<Cut> {
    const handles: string[] = [];
    for (const match of matches) {
      const added = await this.underlay.exec([
        "nft",
        "--echo",
        "--handle",
        `add rule bridge lab cut ${match} counter drop`,
      ]);
      const [, handle] = /# handle (\d+)/.exec(added) ?? [];
      if (handle === undefined) throw new Error(`Cannot find the handle of a rule: nft wrote "${added}"`);
      handles.push(handle);
    }
    return {
      restore: async () => {
        for (const handle of handles.splice(0)) {
          await this.underlay.exec(["nft", `delete rule bridge lab cut handle ${handle}`]);
        }
      },
    };
  }
}

/** Port of a machine on the underlay. The prefix keeps `ip` from reading a short name as one of its words. */
function portOf(name: string): string {
  return `to-${name}`;
}
