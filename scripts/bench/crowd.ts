/**
 * Two Curators side by side, ours and the one of ready bytes, each with a crowd of watchers (watchers.ts) on another machine.
 */
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { Cluster } from "../../test/lab/cluster.ts";
import { Lab, underlayDevice, type Machine } from "../../test/lab/lab.ts";
import type { LabProcess } from "../../test/lab/process.ts";
import { paperNodes, seedCurator } from "./nodes.ts";
import type { WatchersReport } from "./watchers.ts";

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
  readonly #spawn: () => LabProcess;
  #processes: readonly LabProcess[];

  /** `spawn` starts a process for watchers; there are so many at a time. */
  constructor(machine: Machine, server: LabProcess, spawn: () => LabProcess, processes: number) {
    this.#machine = machine;
    this.#server = server;
    this.#spawn = spawn;
    this.#processes = Array.from({ length: processes }, spawn);
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
    this.#processes = old.map(() => this.#spawn());
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
    const [stat, status] = await Promise.all(
      ["stat", "status"].map((name) => readFile(`/proc/${pid}/${name}`, "utf8")),
    );
    const ticks = (stat ?? "")
      .slice((stat ?? "").lastIndexOf(")") + 2)
      .split(" ")
      .slice(11, 13);
    const bytes = await this.#machine.exec(["cat", `/sys/class/net/${underlayDevice}/statistics/tx_bytes`]);
    const [, peak] = /^VmHWM:\s+(\d+) kB$/m.exec(status ?? "") ?? [];
    return {
      processorMs: ticks.reduce((sum, each) => sum + Number(each) * 10, 0),
      bytes: Number(bytes),
      peakMegabytes: (Number(peak) * 1_024) / 1e6,
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

/** Both Curators with the same nodes. */
export interface TwoCrowds extends AsyncDisposable {
  readonly ours: Crowd;
  readonly baseline: Crowd;
}

/** Starts both Curators, and so many processes for the watchers of each; nobody watches yet. */
export async function twoCrowds(nodes: number, processes: number): Promise<TwoCrowds> {
  await using stack = new AsyncDisposableStack();
  const lab = stack.use(await Lab.create());
  const cluster = stack.use(
    await Cluster.create(lab, {
      async seed(dataDirectory) {
        await mkdir(dataDirectory, { mode: 0o700 });
        seedCurator(join(dataDirectory, "curator.db"), paperNodes(nodes));
      },
    }),
  );
  const people = await lab.machine("people");
  const crowd = (machine: Machine, server: LabProcess, address: string): Crowd => {
    const program = [process.execPath, join(import.meta.dir, "watchers.ts"), address];
    return new Crowd(machine, server, () => people.spawn(program, { listens: true }), processes);
  };
  const ours = crowd(cluster.machine, cluster.curator, cluster.address);
  const machine = await lab.machine("baseline");
  const address = `${machine.address}:7835`;
  const server = machine.spawn([
    process.execPath,
    join(import.meta.dir, "ready-bytes.ts"),
    address,
    cluster.address,
  ]);
  await server.waitForLine(/^copied$/, { limitMs });
  await ours.change(0);
  await server.waitForLine(/^ready$/, { limitMs });
  const baseline = crowd(machine, server, address);
  const held = stack.move();
  return { ours, baseline, [Symbol.asyncDispose]: () => held.disposeAsync() };
}
