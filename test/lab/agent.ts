/**
 * The compiled agent on a machine of the lab, and a scripted Curator on another: what tests of whole cases start with.
 *
 *     await using lab = await Lab.create();
 *     const curator = await scriptedCurator(lab);
 *     const a = await Agent.start(await lab.machine("a", { pod: podOf(1) }), {
 *       curator: curator.address, directory: await lab.directory(), pod: podOf(1) });
 *     await curator.call.put(node({ id: "b", key, address: "192.0.2.9", prefixes: ["10.192.2.0/24"] }));
 *     await a.peers((peers) => peers.length === 1, 5000);
 */
import { join } from "node:path";
import type { Status } from "../../src/status.ts";
import { fetchStatus } from "../../src/status-socket.ts";
import { RemoteCurator } from "../fakes/remote-curator.ts";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import { clusterNets, executable } from "./executable.ts";
import type { Lab, Machine, PodNetwork } from "./lab.ts";
import type { LabProcess } from "./process.ts";
import type { LabTrust } from "./trust.ts";
import { waitFor } from "./wait.ts";

export { clusterNets, executable };

/** Pod networks number N of both families: 10.192.N.0/24 with a pod at .2, fd10:c1:0:N::/64 with a pod at ::2. */
export function podOf(number: number): readonly PodNetwork[] {
  return [
    { prefix: `10.192.${number}.0/24`, address: `10.192.${number}.2` },
    { prefix: `fd10:c1:0:${number}::/64`, address: `fd10:c1:0:${number}::2` },
  ];
}

/** A scripted Curator (fakes/curator.ts) on a machine of its own called "cluster"; in plain text without `tls`. */
export async function scriptedCurator(
  lab: Lab,
  name = "cluster",
  tls?: CredentialFiles,
): Promise<RemoteCurator & { machine: Machine }> {
  return await scriptedCuratorOn(await lab.machine(name), tls);
}

/** The same on a machine that is there. */
export async function scriptedCuratorOn(
  machine: Machine,
  tls?: CredentialFiles,
): Promise<RemoteCurator & { machine: Machine }> {
  const prefix = ["nsenter", "-t", String(machine.namespace.pid), "-n", "-m", "--"];
  const curator = await RemoteCurator.start({
    listen: `${machine.address}:7835`,
    prefix,
    ...(tls === undefined ? {} : { tls }),
  });
  return Object.assign(curator, { machine });
}

export interface AgentOptions {
  /** HOST:PORT, one or several. */
  readonly curator: string | readonly string[];
  /** Its data directory is `<directory>/<node ID>`, of a long ID the beginning: the path of a socket is short. */
  readonly directory: string;
  /** Default: the machine's name. */
  readonly nodeId?: string;
  /** TLS with credentials of this cluster. Without: no TLS, which scripted Curators are spoken to in. */
  readonly trust?: LabTrust;
  readonly pod?: readonly PodNetwork[];
  /** Default: the machine's IPv4 address. */
  readonly externalAddress?: string;
  /** More flags; one of them that the agent is given anyway takes the place of that. */
  readonly flags?: readonly string[];
  /** In front of the command: a program that becomes the agent, like `env` or `setpriv`. */
  readonly wrapper?: readonly string[];
  /** Default: clusternet. */
  readonly interfaceName?: string;
  /** Another executable than the one of this build. */
  readonly executable?: string;
  /** For the front of PATH, like a recorder's. */
  readonly path?: string;
  readonly env?: Readonly<Record<string, string>>;
}

export class Agent implements AsyncDisposable {
  readonly machine: Machine;
  readonly process: LabProcess;
  readonly nodeId: string;
  readonly dataDirectory: string;
  readonly interfaceName: string;
  readonly #options: AgentOptions;

  private constructor(machine: Machine, options: AgentOptions) {
    this.machine = machine;
    this.#options = options;
    this.nodeId = options.nodeId ?? machine.name;
    this.dataDirectory = dataDirectoryOf(options.directory, this.nodeId);
    this.interfaceName = options.interfaceName ?? "clusternet";
    const program = options.executable ?? executable;
    this.process = machine.spawn([...(options.wrapper ?? []), program, "run", ...this.flags], {
      ...(options.path === undefined ? {} : { path: options.path }),
      ...(options.env === undefined ? {} : { env: options.env }),
    });
  }

  /** Starts `run` and waits until its socket answers. */
  static async start(machine: Machine, options: AgentOptions): Promise<Agent> {
    const { trust, nodeId = machine.name, directory } = options;
    await trust?.ensure(nodeId, dataDirectoryOf(directory, nodeId));
    const agent = new Agent(machine, options);
    await agent.status((status) => status.agent.running === true, 10_000);
    return agent;
  }

  /** Starts `run` without waiting for anything, credentials as they are: for starts that fail. */
  static spawn(machine: Machine, options: AgentOptions): Agent {
    return new Agent(machine, options);
  }

  /** What `run` is given: userspace WireGuard, both families, quick to compare. */
  get flags(): readonly string[] {
    const { curator, pod = [], flags = [], trust } = this.#options;
    const curators = typeof curator === "string" ? [curator] : curator;
    return [
      ...(trust === undefined ? ["--insecure", "--insecure-anywhere", "--node-id", this.nodeId] : []),
      ...curators.flatMap((each) => ["--curator", each]),
      "--data-dir",
      this.dataDirectory,
      "--external-address",
      this.#options.externalAddress ?? this.machine.address,
      ...(this.#options.interfaceName === undefined ? [] : ["--interface", this.interfaceName]),
      ...(flags.includes("--cluster-net") ? [] : clusterNets.flatMap((each) => ["--cluster-net", each])),
      ...pod.flatMap(({ prefix }) => ["--pod-prefix", prefix]),
      ...unlessIn(flags, "--wireguard", "userspace"),
      ...unlessIn(flags, "--resync", "2"),
      ...unlessIn(flags, "--log-level", "debug"),
      ...flags,
    ];
  }

  /** Waits for a status that is as wanted, and returns it. */
  async status(isWanted: (status: Status) => boolean, limitMs: number): Promise<Status> {
    return await waitFor(
      async () => {
        const fetched = await fetchStatus(join(this.dataDirectory, `${this.interfaceName}.sock`), 2000);
        return fetched.kind === "status" && isWanted(fetched.status) ? fetched.status : undefined;
      },
      { limitMs, what: `status of agent "${this.nodeId}" as wanted`, detail: () => this.process.describe() },
    );
  }

  /** Lines of `wg show … dump` of its interface without the first, each split at its tabs, sorted. */
  async peers(
    isWanted: (peers: readonly string[][]) => boolean,
    limitMs: number,
  ): Promise<readonly string[][]> {
    return await waitFor(
      async () => {
        const shown = await this.machine.run(["wg", "show", this.interfaceName, "dump"]);
        const peers = shown.stdout
          .split("\n")
          .slice(1, -1)
          .map((line) => line.split("\t"));
        return shown.code === 0 && isWanted(peers)
          ? peers.toSorted(([a = ""], [b = ""]) => (a < b ? -1 : 1))
          : undefined;
      },
      { limitMs, what: `peers of "${this.nodeId}" as wanted`, detail: () => this.process.describe() },
    );
  }

  /** Ends it at once, as a crash does, and waits until it is gone. */
  async kill(): Promise<void> {
    this.process.kill("SIGKILL");
    await this.process.exited;
  }

  /** Ends the agent; interface and machine go with the lab. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }

  /** As `restart`, without waiting for anything. */
  spawnAgain(): Agent {
    return Agent.spawn(this.machine, this.#options);
  }

  /** The same agent again, on the same directory, with other options where they are given. */
  async restart(other: Partial<AgentOptions> = {}): Promise<Agent> {
    return await Agent.start(this.machine, { ...this.#options, ...other });
  }
}

function dataDirectoryOf(directory: string, nodeId: string): string {
  return join(directory, nodeId.slice(0, 20));
}

/** A flag may be given once only. */
function unlessIn(flags: readonly string[], flag: string, value: string): readonly string[] {
  return flags.includes(flag) ? [] : [flag, value];
}
