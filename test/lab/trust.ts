/**
 * A cluster with a CA of its own, made by the executable under test: credentials for agents and Curators of a lab.
 *
 *     const trust = await LabTrust.create(lab);
 *     const curator = await OwnCurator.start(await lab.machine("curator"), { trust, directory: await lab.directory() });
 *     const a = await Agent.start(await lab.machine("a"), { curator: curator.address, trust, directory });
 */
import { join } from "node:path";
import { type CredentialFiles, credentialNames } from "../../src/trust/credential-files.ts";
import { clusterNets, executable } from "./executable.ts";
import type { Lab, Machine } from "./lab.ts";
import type { LabProcess } from "./process.ts";

export class LabTrust {
  readonly caDirectory: string;

  private constructor(caDirectory: string) {
    this.caDirectory = caDirectory;
  }

  /** Makes a CA. */
  static async create(lab: Lab): Promise<LabTrust> {
    const trust = new LabTrust(join(await lab.directory(), "ca"));
    await pki(["init", "--ca-dir", trust.caDirectory]);
    return trust;
  }

  /** Makes the credentials of a node where they are looked for: in its data directory. They must not be there. */
  async issue(nodeId: string, dataDirectory: string): Promise<CredentialFiles> {
    const out = join(dataDirectory, "credentials");
    await pki(["issue", nodeId, "--ca-dir", this.caDirectory, "--out", out]);
    const path = (name: keyof CredentialFiles): string => join(out, credentialNames[name]);
    return { ca: path("ca"), cert: path("cert"), key: path("key") };
  }

  /** As `issue`, unless the node has some. */
  async ensure(nodeId: string, dataDirectory: string): Promise<void> {
    const { cert } = credentialNames;
    if (!(await Bun.file(join(dataDirectory, "credentials", cert)).exists()))
      await this.issue(nodeId, dataDirectory);
  }
}

/** Runs `clusternet pki`. Throws with what it says when it fails. */
async function pki(args: readonly string[]): Promise<void> {
  const child = Bun.spawn([executable, "pki", ...args], { env: {}, stdout: "ignore", stderr: "pipe" });
  const [stderr, status] = await Promise.all([child.stderr.text(), child.exited]);
  if (status !== 0) throw new Error(`clusternet pki ${args.join(" ")} ended with ${status}: ${stderr}`);
}

/** `clusternet curator` with TLS on a machine of the lab, as node "curator". */
export class OwnCurator {
  readonly machine: Machine;
  readonly dataDirectory: string;
  readonly address: string;
  readonly process: LabProcess;

  private constructor(machine: Machine, dataDirectory: string) {
    this.machine = machine;
    this.dataDirectory = dataDirectory;
    this.address = `${machine.address}:7835`;
    this.process = machine.spawn([
      executable,
      "curator",
      `--listen=${this.address}`,
      `--data-dir=${dataDirectory}`,
      "--log-level=debug",
      ...clusterNets.map((network) => `--cluster-net=${network}`),
    ]);
  }

  /** Starts it and waits until it listens. */
  static async start(
    machine: Machine,
    options: { readonly trust: LabTrust; readonly directory: string },
  ): Promise<OwnCurator> {
    const dataDirectory = join(options.directory, "curator");
    await options.trust.ensure("curator", dataDirectory);
    const curator = new OwnCurator(machine, dataDirectory);
    await curator.process.waitForLine(/listening/, { limitMs: 15_000 });
    return curator;
  }

  /** `clusternet node …` on its machine. */
  async node(...args: readonly string[]): Promise<string> {
    return await this.machine.exec([executable, "node", ...args, `--data-dir=${this.dataDirectory}`]);
  }
}
