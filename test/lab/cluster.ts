/**
 * A cluster as in life: a Curator of this project, with its nodes in SQLite, on a machine of its own, and agents that
 * report their status to it.
 *
 *     await using cluster = await Cluster.create(lab);
 *     const [a, b] = await cluster.agents(["a", "b"]);     // every pair has shaken hands
 */
import { readNodes, type ListedNode } from "../../src/curator-server/admin.ts";
import { Agent, clusterNets, executable, podOf } from "./agent.ts";
import type { Lab, Machine } from "./lab.ts";
import type { LabProcess } from "./process.ts";
import type { Recorder } from "./recorder.ts";

/** Longest wait for what happens at once, on a busy machine. */
const limitMs = 15_000;

/** An agent of a cluster; its pod answers at 10.192.NUMBER.2. */
export interface Member {
  readonly agent: Agent;
  readonly recorder: Recorder;
  readonly number: number;
}

export class Cluster implements AsyncDisposable {
  readonly machine: Machine;
  /** HOST:PORT of the Curator. */
  readonly address: string;
  /** Of the Curator. */
  readonly dataDirectory: string;
  readonly #lab: Lab;
  readonly #directory: string;
  readonly #agents: Agent[] = [];
  #curator: LabProcess | undefined;

  private constructor(lab: Lab, machine: Machine, directory: string) {
    this.#lab = lab;
    this.machine = machine;
    this.address = `${machine.address}:7835`;
    this.#directory = directory;
    this.dataDirectory = `${directory}/curator`;
  }

  /** Starts the Curator. `seed` may fill the directory of its data before. */
  static async create(
    lab: Lab,
    { seed }: { readonly seed?: (dataDirectory: string) => Promise<void> } = {},
  ): Promise<Cluster> {
    const machine = await lab.machine(`curator-${crypto.randomUUID().slice(0, 4)}`);
    const cluster = new Cluster(lab, machine, await lab.directory());
    await seed?.(cluster.dataDirectory);
    await cluster.startCurator();
    return cluster;
  }

  /** Starts the Curator, or starts it again on the same data. */
  async startCurator(): Promise<void> {
    this.#curator = this.machine.spawn([
      executable,
      "curator",
      "--insecure",
      "--insecure-anywhere",
      "--listen",
      this.address,
      "--data-dir",
      this.dataDirectory,
      ...clusterNets.flatMap((network) => ["--cluster-net", network]),
    ]);
    await this.#curator.waitForLine(/Curator is listening/, { limitMs });
  }

  /** The Curator as it was last started. */
  get curator(): LabProcess {
    if (this.#curator === undefined) throw new Error("the Curator was not started");
    return this.#curator;
  }

  /** Ends the Curator as a crash does. */
  async killCurator(): Promise<void> {
    this.#curator?.kill("SIGKILL");
    await this.#curator?.exited;
  }

  /** Everything the Curator holds. */
  async nodeList(): Promise<readonly ListedNode[]> {
    return await readNodes(this.dataDirectory);
  }

  /** Starts an agent each, with pods, and waits until every one has reached the pods of all others. */
  async agents(names: readonly string[]): Promise<readonly Member[]> {
    const members: Member[] = [];
    for (const [at, nodeId] of names.entries()) {
      const number = at + 1;
      const pod = podOf(number);
      const machine = await this.#lab.machine(`${nodeId}-${crypto.randomUUID().slice(0, 6)}`, { pod });
      const recorder = await this.#lab.recorder();
      const agent = await Agent.start(machine, {
        curator: this.address,
        directory: this.#directory,
        nodeId,
        pod,
        path: recorder.path,
        flags: ["--report-status", "on"],
      });
      this.#agents.push(agent);
      members.push({ agent, recorder, number });
    }
    for (const { agent, number } of members) {
      for (const other of members) {
        if (other.number === number) continue;
        await agent.machine.pod.reach(`10.192.${other.number}.2`, { limitMs });
      }
    }
    return members;
  }

  /** Ends everything that was started here; machines and interfaces go with the lab. */
  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) await agent.kill();
    await this.killCurator();
  }
}
