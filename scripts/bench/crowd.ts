/**
 * Two Curators side by side, ours and what it is compared with, each with a crowd of watchers (watchers.ts) on another machine.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Cluster } from "../../test/lab/cluster.ts";
import { Lab, underlayDevice, type Machine } from "../../test/lab/lab.ts";
import type { LabProcess } from "../../test/lab/process.ts";
import { LabTrust, OwnCurator } from "../../test/lab/trust.ts";
import { memoryOf, processorMsOf } from "../../test/lab/usage.ts";
import { maxWatchesOfCaller } from "../../src/curator-server/service.ts";
import { credentialNames } from "../../src/trust/credential-files.ts";
import { readCertificate, readKey, revealKey } from "../../src/trust/credentials.ts";
import { makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { paperNodes, seedCurator } from "./nodes.ts";
import { changingNode, partNode, type WatchersReport } from "./watchers.ts";

const limitMs = 240_000;

/** What a Curator has used so far. */
export interface Usage {
  readonly processorMs: number;
  /** Sent by its machine. */
  readonly bytes: number;
  /** The most memory that it ever had. */
  readonly peakMegabytes: number;
}

/** A Curator and its crowd. */
export class Crowd {
  readonly #machine: Machine;
  readonly #server: LabProcess;
  readonly #spawn: (part: number) => LabProcess;
  #processes: readonly LabProcess[];

  /** `spawn` starts a process for watchers; there are so many at a time. */
  constructor(machine: Machine, server: LabProcess, spawn: (part: number) => LabProcess, processes: number) {
    this.#machine = machine;
    this.#server = server;
    this.#spawn = spawn;
    this.#processes = Array.from({ length: processes }, (_, part) => spawn(part));
  }

  /** So many watchers, spread over the processes. Returns how long it took until the last had everything. */
  async open(
    watchers: number,
  ): Promise<{ readonly bootMs: number; readonly askedMs: number; readonly failures: number }> {
    const reports = await Promise.all(
      this.#shares(watchers).map(async ({ process, share }) =>
        this.#hear(await ask(process, `open ${share}`), "backlog"),
      ),
    );
    const lastAtMs = Math.max(...reports.map((report) => report.lastAtMs));
    return {
      bootMs: lastAtMs - Math.min(...reports.map(({ openedAtMs }) => openedAtMs)),
      askedMs: lastAtMs - Math.min(...reports.map(({ askedAtMs }) => askedAtMs)),
      failures: reports.reduce((sum, { failures }) => sum + failures, 0),
    };
  }

  /** A change is reported: milliseconds until the last of so many watchers has it, and until the caller has its answer. */
  async change(watchers: number): Promise<{ readonly lastMs: number; readonly answerMs: number }> {
    const [first] = this.#processes;
    if (first === undefined) throw new Error("a crowd has a process");
    const marks = this.#shares(watchers).map(({ process }) => ({ process, from: process.mark() }));
    const asked = await ask(first, "change");
    const [{ sentAtMs, answeredAtMs }, ...seen] = await Promise.all([
      this.#hear(asked, "changed"),
      ...marks.map((mark) => this.#hear(mark, "change")),
    ]);
    const lastAtMs = Math.max(answeredAtMs, ...seen.map((report) => report.lastAtMs));
    return { lastMs: lastAtMs - sentAtMs, answerMs: answeredAtMs - sentAtMs };
  }

  /** Lets all watchers go. Their processes are taken anew, since those of thousands keep gigabytes. */
  async close(): Promise<void> {
    const old = this.#processes;
    this.#processes = old.map((_, part) => this.#spawn(part));
    for (const process of old) {
      await this.#hear(await ask(process, "close"), "closed");
      await process.say("end");
      await process.exited;
    }
  }

  /** Which process has how many of so many watchers; those that have none are left out. */
  #shares(watchers: number): readonly { readonly process: LabProcess; readonly share: number }[] {
    const all = this.#processes.length;
    return this.#processes.flatMap((process, at) => {
      const share = Math.floor((watchers + at) / all);
      return share === 0 ? [] : [{ process, share }];
    });
  }

  /** What the Curator has used since its start. */
  async usage(): Promise<Usage> {
    const { pid } = this.#server;
    const bytes = await this.#machine.exec(["cat", `/sys/class/net/${underlayDevice}/statistics/tx_bytes`]);
    return {
      processorMs: processorMsOf(pid),
      bytes: Number(bytes),
      peakMegabytes: memoryOf(pid, "VmHWM"),
    };
  }

  /** The first report of that kind after the mark of the process. */
  async #hear<Kind extends WatchersReport["kind"]>(
    { process, from }: Asked,
    kind: Kind,
  ): Promise<Extract<WatchersReport, { kind: Kind }>> {
    const line = await process.waitForLine(new RegExp(`^\\{"kind":"${kind}"[,}]`), { limitMs, from });
    return JSON.parse(line.text) as Extract<WatchersReport, { kind: Kind }>;
  }
}

/** A process that was told something, and how many lines it had written then. */
interface Asked {
  readonly process: LabProcess;
  readonly from: number;
}

async function ask(process: LabProcess, command: string): Promise<Asked> {
  const from = process.mark();
  await process.say(command);
  return { process, from };
}

/** Two Curators with the same nodes. */
export interface TwoCrowds extends AsyncDisposable {
  readonly ours: Crowd;
  readonly baseline: Crowd;
}

/** Ours, and the server of ready bytes, both in plain text; so many processes for the watchers of each. */
export async function twoCrowds(nodes: number, processes: number): Promise<TwoCrowds> {
  await using stack = new AsyncDisposableStack();
  const lab = stack.use(await Lab.create());
  const cluster = stack.use(await plainCurator(lab, nodes));
  const people = await lab.machine("people");
  const ours = crowdOf({ machine: cluster.machine, server: cluster.curator, people, processes });
  const machine = await lab.machine("baseline");
  const server = machine.spawn([
    process.execPath,
    join(import.meta.dir, "ready-bytes.ts"),
    `${machine.address}:7835`,
    cluster.address,
  ]);
  await server.waitForLine(/^copied$/, { limitMs });
  await ours.change(0);
  await server.waitForLine(/^ready$/, { limitMs });
  const baseline = crowdOf({ machine, server, people, processes });
  const held = stack.move();
  return { ours, baseline, [Symbol.asyncDispose]: () => held.disposeAsync() };
}

/** Ours with TLS, and as the baseline ours in plain text. */
export async function tlsCrowds(nodes: number, processes: number): Promise<TwoCrowds> {
  await using stack = new AsyncDisposableStack();
  const lab = stack.use(await Lab.create());
  const cluster = stack.use(await plainCurator(lab, nodes));
  const people = await lab.machine("people");
  const trust = await LabTrust.create(lab);
  const directory = await lab.directory();
  await trust.ensure("curator", join(directory, "curator"));
  seedCurator(join(directory, "curator", "curator.db"), paperNodes(nodes));
  const curator = await OwnCurator.start(await lab.machine("curator"), { trust, directory });
  const credentials = await lab.directory();
  const parts = Array.from({ length: processes }, (_, part) =>
    Array.from({ length: Math.ceil(nodes / processes / maxWatchesOfCaller) }, (_, number) =>
      partNode(String(part), number),
    ),
  );
  await writeCredentials(credentials, trust, [changingNode, ...parts.flat()]);
  const { machine, process: server } = curator;
  const ours = crowdOf({ machine, server, people, processes, credentials });
  const baseline = crowdOf({ machine: cluster.machine, server: cluster.curator, people, processes });
  const held = stack.move();
  return { ours, baseline, [Symbol.asyncDispose]: () => held.disposeAsync() };
}

function plainCurator(lab: Lab, nodes: number): Promise<Cluster> {
  return Cluster.create(lab, {
    async seed(dataDirectory) {
      await mkdir(dataDirectory, { mode: 0o700 });
      seedCurator(join(dataDirectory, "curator.db"), paperNodes(nodes));
    },
  });
}

function crowdOf(parts: {
  readonly machine: Machine;
  readonly server: LabProcess;
  readonly people: Machine;
  readonly processes: number;
  readonly credentials?: string;
}): Crowd {
  const { machine, server, people, processes, credentials } = parts;
  const program = [process.execPath, join(import.meta.dir, "watchers.ts"), `${machine.address}:7835`];
  const spawn = (part: number): LabProcess =>
    people.spawn([...program, String(part), ...(credentials === undefined ? [] : [credentials])], {
      listens: true,
    });
  return new Crowd(machine, server, spawn, processes);
}

/** A folder of credentials for each of these nodes; `clusternet pki` would take a process each. */
async function writeCredentials(
  directory: string,
  trust: LabTrust,
  nodeIds: readonly string[],
): Promise<void> {
  const certificate = await readCertificate("CA", join(trust.caDirectory, "ca.pem"));
  const { key } = await readKey("CA key", join(trust.caDirectory, "ca-key.pem"));
  for (const nodeId of nodeIds) {
    const folder = join(directory, nodeId);
    await mkdir(folder);
    const own = makeNodeCertificate(nodeId, { certificate, key }, new Date());
    await writeFile(join(folder, credentialNames.ca), certificate.toString());
    await writeFile(join(folder, credentialNames.cert), own.certificate.toString());
    await writeFile(join(folder, credentialNames.key), revealKey(own.key), { mode: 0o600 });
  }
}
