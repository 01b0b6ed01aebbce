/**
 * Our own Curator with TLS and two nodes, "a" and "b", whose agents report to it: a cluster without anything scripted.
 */
import { Agent, podOf } from "./agent.ts";
import type { Lab } from "./lab.ts";
import { freshMachine } from "./stage.ts";
import { LabTrust, OwnCurator } from "./trust.ts";

export class OwnCluster implements AsyncDisposable {
  readonly curator: OwnCurator;
  readonly a: Agent;
  readonly b: Agent;

  private constructor(curator: OwnCurator, a: Agent, b: Agent) {
    this.curator = curator;
    this.a = a;
    this.b = b;
  }

  /** `flags`: more flags of the agents. `clockSpeed`: their waits are so many times shorter. */
  static async create(
    lab: Lab,
    { flags = [], clockSpeed = 1 }: { readonly flags?: readonly string[]; readonly clockSpeed?: number } = {},
  ): Promise<OwnCluster> {
    const trust = await LabTrust.create(lab);
    const directory = await lab.directory();
    const curator = await OwnCurator.start(await freshMachine(lab, "own"), { trust, directory });
    const start = async (nodeId: string, number: number): Promise<Agent> =>
      await Agent.start(await freshMachine(lab, nodeId), {
        curator: curator.address,
        directory,
        nodeId,
        trust,
        pod: podOf(number).slice(0, 1),
        flags: ["--report-status", "on", ...flags],
        env: { CLUSTERNET_CLOCK_SPEED: String(clockSpeed) },
      });
    return new OwnCluster(curator, await start("a", 1), await start("b", 2));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([this.a.kill(), this.b.kill(), this.curator.process.stop()]);
  }
}
