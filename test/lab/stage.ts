/**
 * What most tests of whole cases begin with: agent "a" with pod prefix 10.192.1.0/24 on a machine of its own, its
 * calls of `wg` and `ip` recorded, and a scripted Curator of its own on another machine.
 *
 *     await using stage = await Stage.create(lab);
 *     const b = await stage.peer("b", 2);              // real WireGuard, announced and reached
 *     await stage.recorder.clear();
 */
import type { RemoteCurator } from "../fakes/remote-curator.ts";
import { Agent, podOf, scriptedCurator, type AgentOptions } from "./agent.ts";
import { BarePeer, type BarePeerOptions } from "./bare-peer.ts";
import type { Lab, Machine } from "./lab.ts";
import { long } from "./long.ts";
import type { Ping, PingResult } from "./ping.ts";
import type { Recorder } from "./recorder.ts";
import { node } from "../fakes/curator.ts";
import { waitFor } from "./wait.ts";

/** Pings that "0 lost" is said of. */
export const pings = long ? 2_000 : 400;

/** Longest wait for something that the agent does at once, on a busy machine. */
export const soonMs = 10_000;

export interface StageOptions {
  /** Do something with the Curator before the agent is there. */
  readonly prepare?: (curator: RemoteCurator & { readonly machine: Machine }) => Promise<void>;
  /** More flags of the agent. */
  readonly flags?: readonly string[];
  /** More options of the agent, or others, for the machine that it is going to run on. */
  readonly agent?: (machine: Machine) => Promise<Partial<AgentOptions>>;
  /** More Curators, tried after the first one. */
  readonly curators?: readonly string[];
  /** Default "a". */
  readonly nodeId?: string;
  /** Every wait of the agent is so many times shorter; it still compares the host every second. */
  readonly clockSpeed?: number;
}

/** A machine with a name that no other one in the lab has. */
export async function freshMachine(lab: Lab, stem: string): Promise<Machine> {
  return await lab.machine(`${stem}-${crypto.randomUUID().slice(0, 6)}`);
}

export class Stage implements AsyncDisposable {
  readonly lab: Lab;
  readonly curator: RemoteCurator & { readonly machine: Machine };
  readonly recorder: Recorder;
  readonly directory: string;
  /** The agent as last started. */
  agent: Agent;

  private constructor(parts: {
    readonly lab: Lab;
    readonly curator: RemoteCurator & { readonly machine: Machine };
    readonly recorder: Recorder;
    readonly directory: string;
    readonly agent: Agent;
  }) {
    this.lab = parts.lab;
    this.curator = parts.curator;
    this.recorder = parts.recorder;
    this.directory = parts.directory;
    this.agent = parts.agent;
  }

  /** Starts the Curator, then the agent, and waits until the agent answers. */
  static async create(lab: Lab, options: StageOptions = {}): Promise<Stage> {
    const curator = await scriptedCurator(lab, `cluster-${crypto.randomUUID().slice(0, 4)}`);
    try {
      await options.prepare?.(curator);
      const recorder = await lab.recorder();
      const directory = await lab.directory();
      const { flags = [], clockSpeed = 1 } = options;
      const machine = await freshMachine(lab, "a");
      const agentOptions: AgentOptions = {
        curator: [curator.address, ...(options.curators ?? [])],
        directory,
        nodeId: options.nodeId ?? "a",
        env: { CLUSTERNET_CLOCK_SPEED: String(clockSpeed) },
        pod: podOf(1).slice(0, 1),
        path: recorder.path,
        // Many a test waits for a comparison or two with the host.
        flags: flags.includes("--resync") ? flags : ["--resync", String(clockSpeed), ...flags],
        ...(await options.agent?.(machine)),
      };
      const agent = await Agent.start(machine, agentOptions);
      return new Stage({ lab, curator, recorder, directory, agent });
    } catch (error) {
      await curator[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Ends agent and Curator; machines and interfaces go with the lab. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.agent.kill();
    await this.curator[Symbol.asyncDispose]();
  }

  /** A real peer that is announced, and answers. */
  async peer(id: string, number: number, options: BarePeerOptions = {}): Promise<BarePeer> {
    const peer = await BarePeer.start(await freshMachine(this.lab, id), number, options);
    await this.curator.call.put(peer.node(id));
    await this.agent.peers((peers) => peers.some(([key]) => key === peer.publicKey), soonMs);
    // Not before: a first word that is not understood is repeated only after five seconds.
    await peer.know(this.agent);
    await this.agent.machine.reach(peer.target, { limitMs: soonMs });
    return peer;
  }

  /** Public key, and sorted allowed IPs in one text, of every peer of the interface as soon as they are as wanted. */
  async holds(
    wanted: readonly (readonly [key: string, allowedIps: string])[],
    limitMs = soonMs,
  ): Promise<void> {
    const text = shownAs(wanted);
    await this.agent.peers(
      (peers) => shownAs(peers.map((peer) => [peer[0] ?? "", peer[3] ?? ""])) === text,
      limitMs,
    );
  }

  /** Kind and node of every problem, sorted. */
  async problems(
    isWanted: (problems: readonly string[]) => boolean,
    limitMs = soonMs,
  ): Promise<readonly string[]> {
    let found: readonly string[] = [];
    await this.agent.status((status) => {
      found = status.problems.map(({ kind, nodeId }) => `${kind} ${nodeId ?? "-"}`);
      return isWanted(found);
    }, limitMs);
    return found;
  }

  /** Waits until the agent has compared the host that many times more. */
  async resyncs(count: number): Promise<void> {
    const dumps = async (): Promise<number> =>
      (await this.recorder.calls()).filter((call) => call.join(" ") === "wg show clusternet dump").length;
    const before = await dumps();
    await waitFor(async () => (await dumps()) >= before + count, {
      limitMs: 4_000 * count + soonMs,
      what: `${count} resyncs`,
      everyMs: 100,
      detail: () => this.agent.process.describe(),
    });
  }

  /** Waits until the agent is watching. */
  async streaming(): Promise<void> {
    await waitFor(async () => (await this.curator.call.seen()).streams.at(-1)?.open, {
      limitMs: 15_000 + soonMs,
      what: "a watch stream of the agent",
      detail: () => this.agent.process.describe(),
    });
  }

  /**
   * Returns when all that the Curator was told to send before has been taken in and compared: a node with a bad
   * key goes after it, and its problem is waited for.
   */
  async caughtUp(): Promise<void> {
    const id = `marker-${crypto.randomUUID().slice(0, 8)}`;
    await this.curator.call.put(node({ id, key: "unusable", address: "198.51.100.1" }));
    await this.problems((problems) => problems.includes(`key-invalid ${id}`));
    await this.resyncs(1);
    await this.curator.call.remove(id);
    await this.problems((problems) => !problems.includes(`key-invalid ${id}`));
  }

  /** Index of the interface: another one means that it was made anew. */
  async interfaceIndex(): Promise<number> {
    const shown = await this.agent.machine.exec(["ip", "-j", "link", "show", "clusternet"]);
    const [link] = JSON.parse(shown) as { readonly ifindex: number }[];
    if (link === undefined) throw new Error("interface clusternet is not there");
    return link.ifindex;
  }

  /** Path of the file of the mesh. */
  get file(): string {
    return `${this.agent.dataDirectory}/clusternet.conf`;
  }
}

/** A node with a key of its own, an address that nobody has, and prefixes, and how the interface shows it. */
export function paperNode(
  id: string,
  address: string,
  prefixes: readonly string[],
  key: string = crypto.getRandomValues(new Uint8Array(32)).toBase64(),
): { readonly bytes: Uint8Array; readonly allowed: readonly [string, string]; readonly key: string } {
  const all = [`${address}/${address.includes(":") ? 128 : 32}`, ...prefixes];
  return { bytes: node({ id, key, address, prefixes: all }), allowed: [key, all.join(",")], key };
}

/** As many nodes that nobody runs, each with a /28 of its own. */
export function crowdOf(count: number): readonly ReturnType<typeof paperNode>[] {
  return Array.from({ length: count }, (_, at) => {
    const network = `10.${200 + (at >> 12)}.${(at >> 4) & 255}.${(at & 15) << 4}/28`;
    return paperNode(`node-${at + 1}`, `198.18.${at >> 8}.${at & 255}`, [network]);
  });
}

/** Waits until `count` pings were sent, ends the ping and returns what must be `{ lost: 0 }`. */
export async function finishPing(
  ping: Ping,
  count: number = pings,
): Promise<Pick<PingResult, "lost" | "lostNumbers"> & { readonly how?: string }> {
  await ping.sent(count, (count / 200) * 1_000 * 4 + soonMs);
  const { lost, lostNumbers, sent, late, maxMs, complaints } = await ping.stop();
  if (lost === 0) return { lost, lostNumbers };
  // For who reads of the failed test.
  const how = `${late} of ${lost} late, slowest ${maxMs} ms, ${sent} sent; ping said: ${complaints.slice(0, 5).join("; ")}`;
  return { lost, lostNumbers, how };
}

/** What `finishPing` gives of a mesh that worked all the time. */
export const nothingLost = { lost: 0, lostNumbers: [] };

/** Peers in one text that says the same whatever order they and their allowed IPs come in. */
function shownAs(peers: readonly (readonly [key: string, allowedIps: string])[]): string {
  const lines = peers.map(([key, allowedIps]) => {
    const each = allowedIps === "(none)" ? [] : allowedIps.split(",");
    return [key, ...each.toSorted((a, b) => (a < b ? -1 : 1))].join(" ");
  });
  return lines.toSorted((a, b) => (a < b ? -1 : 1)).join("\n");
}
