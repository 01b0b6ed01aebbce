/**
 * The compiled agent "a" on a machine of the lab in a mesh of paper nodes, and the floor beside it.
 *
 * With a scripted Curator (test/fakes/curator.ts) where a row must know the instant of sending to the microsecond, which
 * that one tells; with our own, and TLS, everywhere else.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { RemoteCurator } from "../../test/fakes/remote-curator.ts";
import { Agent, scriptedCurator } from "../../test/lab/agent.ts";
import { Lab, type Machine } from "../../test/lab/lab.ts";
import { monotonicMs } from "../../test/lab/monotonic.ts";
import { freshMachine } from "../../test/lab/stage.ts";
import type { LabProcess } from "../../test/lab/process.ts";
import { LabTrust, OwnCurator } from "../../test/lab/trust.ts";
import { encodePaperNode, paperNodes, seedCurator, type PaperNode } from "./nodes.ts";
import { WgStamps } from "./stamps.ts";

/** Longest wait for anything here: 10,000 peers on a busy machine. */
export const limitMs = 60_000;

/** The mesh is applied and whole; see pull.ts. */
export const inStep = /In step with the Curator/;

/**
 * Puts a pipe with a reader of its own behind the log: Bun gives a child a socket, which is full after 70 lines, and an
 * agent leaves out lines that find no room while this process is kept from reading.
 */
const roomyLog = ["bash", "-c", 'exec "$@" 2> >(exec cat >&2)', "bash"];

/** Flags of every agent here; the pod prefix is one that no paper node has, and no other agent. */
function flagsOf(nodeId: string): readonly string[] {
  return ["--pod-prefix", `10.223.255.${(nodeId.charCodeAt(0) % 4) * 64}/26`, "--log-level", "info"];
}

/** An agent whose calls of `wg` are stamped. */
export interface StampedAgent {
  readonly agent: Agent;
  readonly machine: Machine;
  readonly stamps: WgStamps;
}

/** A scripted Curator with that many nodes, and an agent in step with it that compares nothing by itself. */
export class ScriptedStage implements AsyncDisposable, StampedAgent {
  readonly nodes: readonly PaperNode[];
  readonly curator: RemoteCurator;
  readonly agent: Agent;
  readonly stamps: WgStamps;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    parts: StampedAgent & { readonly nodes: readonly PaperNode[]; readonly curator: RemoteCurator },
    stack: AsyncDisposableStack,
  ) {
    this.nodes = parts.nodes;
    this.curator = parts.curator;
    this.agent = parts.agent;
    this.stamps = parts.stamps;
    this.#stack = stack;
  }

  static async create(count: number): Promise<ScriptedStage> {
    await using stack = new AsyncDisposableStack();
    const lab = stack.use(await Lab.create());
    const nodes = paperNodes(count);
    const curator = stack.use(await scriptedCurator(lab));
    await curator.call.backlog(...nodes.map((each) => encodePaperNode(each)));
    const stamps = stack.use(await WgStamps.create(await lab.directory()));
    const agent = Agent.spawn(await lab.machine("a"), {
      curator: curator.address,
      directory: await lab.directory(),
      path: stamps.path,
      wrapper: roomyLog,
      flags: [...flagsOf("a"), "--resync", "3600"],
    });
    stack.defer(() => agent.kill());
    await agent.process.waitForLine(inStep, { limitMs });
    return new ScriptedStage({ nodes, curator, agent, stamps, machine: agent.machine }, stack.move());
  }

  get machine(): Machine {
    return this.agent.machine;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** Our Curator with TLS and that many nodes in its database, on a machine of its own. */
export class OwnStage implements AsyncDisposable {
  readonly nodes: readonly PaperNode[];
  readonly curator: OwnCurator;
  readonly lab: Lab;
  readonly #trust: LabTrust;
  readonly #stack: AsyncDisposableStack;

  private constructor(
    parts: {
      readonly nodes: readonly PaperNode[];
      readonly curator: OwnCurator;
      readonly lab: Lab;
      readonly trust: LabTrust;
    },
    stack: AsyncDisposableStack,
  ) {
    this.nodes = parts.nodes;
    this.curator = parts.curator;
    this.lab = parts.lab;
    this.#trust = parts.trust;
    this.#stack = stack;
  }

  static async create(count: number): Promise<OwnStage> {
    await using stack = new AsyncDisposableStack();
    const lab = stack.use(await Lab.create());
    const trust = await LabTrust.create(lab);
    const directory = await lab.directory();
    const nodes = paperNodes(count);
    // Its directory, which the credentials are put into.
    await trust.ensure("curator", join(directory, "curator"));
    seedCurator(join(directory, "curator", "curator.db"), nodes);
    const curator = await OwnCurator.start(await lab.machine("curator"), { trust, directory });
    stack.defer(async () => {
      await curator.process.stop();
    });
    return new OwnStage({ nodes, curator, lab, trust }, stack.move());
  }

  /**
   * Starts an agent on a new machine, with a new key and no interface. `again` starts it after its end, with both. Not
   * `stamped`: it has no wrapper around `wg`, and the stamps stay empty.
   */
  async spawnAgent(
    more: readonly string[] = ["--resync", "3600"],
    { nodeId = "a", stamped = true }: { readonly nodeId?: string; readonly stamped?: boolean } = {},
  ): Promise<StampedAgent & { readonly again: () => Agent }> {
    const stamps = await WgStamps.create(await this.lab.directory());
    this.#stack.use(stamps);
    const directory = await this.lab.directory();
    await this.#trust.ensure(nodeId, join(directory, nodeId));
    const machine = await freshMachine(this.lab, nodeId);
    const again = (): Agent => {
      const agent = Agent.spawn(machine, {
        curator: this.curator.address,
        directory,
        nodeId,
        trust: this.#trust,
        ...(stamped ? { path: stamps.path } : {}),
        wrapper: roomyLog,
        flags: [...flagsOf(nodeId), "--report-status", "on", ...more],
      });
      this.#stack.defer(() => agent.kill());
      return agent;
    };
    return { agent: again(), machine, stamps, again };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#stack.disposeAsync();
  }
}

/** The file of the mesh that an agent has written. */
export function meshFile(agent: Agent): string {
  return join(agent.dataDirectory, "clusternet.conf");
}

/** A running floor program (floor.ts): each `begin` is a round. */
export class Floor implements AsyncDisposable {
  readonly #process: LabProcess;
  #mark = 0;

  private constructor(process: LabProcess) {
    this.#process = process;
  }

  /** `content`: what it writes at each round to a file beside that; `rounds`: the commands of the first, second … round. */
  static async start(
    machine: Machine,
    options: {
      readonly content: string;
      readonly path: string;
      readonly rounds: readonly (readonly (readonly string[])[])[];
    },
  ): Promise<Floor> {
    const { content, path, rounds } = options;
    const commands = `${content}.commands`;
    await writeFile(commands, JSON.stringify(rounds));
    const argv = [process.execPath, join(import.meta.dir, "floor.ts"), content, `${content}.floor`, commands];
    const floor = new Floor(machine.spawn(argv, { path, listens: true }));
    await floor.#process.waitForLine(/^ready$/, { limitMs });
    return floor;
  }

  /** Starts a round, and returns when that was, by `monotonicMs`. */
  async begin(): Promise<number> {
    this.#mark = this.#process.mark();
    const atMs = monotonicMs();
    await this.#process.say("go");
    return atMs;
  }

  /** Waits for the end of the round. */
  async done(): Promise<void> {
    await this.#process.waitForLine(/^done$/, { limitMs, from: this.#mark });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#process.say("end");
    await this.#process.exited;
  }
}

/** A copy of a file, for a program that works on it by another name. */
export async function copyOf(path: string, copy: string): Promise<string> {
  await writeFile(copy, await readFile(path), { mode: 0o600 });
  return copy;
}
