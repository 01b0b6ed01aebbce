/**
 * `Service`: the whole agent on one AbortSignal. The command line is a thin user of it.
 *
 * Starting takes the place (lock), the key, the last file and the host as they are, and changes nothing that is
 * right already; the Curator is called meanwhile. From then on pull and push work side by side and neither ends before
 * the signal aborts. Ending takes nothing away: interface, routes, file and announcement stay (C4.11).
 */
import { createAgent, type Agent, type ServiceOptions } from "./agent.ts";
import { AgentStatus } from "./agent-status.ts";
import type { NodeId } from "./core/node.ts";
import type { Problem, ProblemKind } from "./core/problem.ts";
import { ClusternetError, describeInLine, exitStatus } from "./errors.ts";
import type { AgentMemory } from "./host/state-file.ts";
import { followOwn, sourceIsSilent } from "./own.ts";
import { previewRun, type Preview } from "./preview.ts";
import { rememberCurators, rememberPodPrefixes } from "./remember.ts";
import { startAgent, type RunningAgent } from "./start.ts";
import { giveMemoryBack, spareMemory } from "./spare-memory.ts";
import type { Status } from "./status.ts";
import { watchTimeOfDay } from "./time-watch.ts";
import { tooLate } from "./too-late.ts";

export class Service {
  readonly #agent: Agent;
  readonly #status: AgentStatus;
  #running: RunningAgent | undefined;

  /** Throws ClusternetError for an option that cannot be: what the command line refuses, this refuses too. */
  constructor(options: ServiceOptions) {
    this.#agent = createAgent(options);
    this.#status = new AgentStatus(this.#agent, () => this.#running);
  }

  /**
   * Runs until `signal` aborts. Throws before anything was changed when the place is taken, the key cannot be used
   * or the host has no WireGuard; after that nothing but a bug ends it.
   */
  async run(signal: AbortSignal): Promise<void> {
    // One loop that ends by a bug must end the others, or the agent would live on half.
    const broken = new AbortController();
    const until = AbortSignal.any([signal, broken.signal]);
    const running = await startAgent(this.#agent, this.#status, until).catch((error: unknown) => {
      broken.abort();
      throw error;
    });
    if (running === undefined) return;
    this.#running = running;
    const { clock, log } = this.#agent;
    const { pull, push, own, ownSettings, sources, underlay, memory } = running;
    const loops = [
      pull.run(until),
      push.run(until),
      followOwn(ownSettings, sources, own, until),
      underlay.run(until),
      running.housekeeping.run(until),
      watchTimeOfDay({ clock, log }, until),
      this.#watchHost(running, until),
      this.#watchProblems(running, until),
      rememberCurators(this.#agent, { state: pull.state, memory }, until),
      spareMemory({ state: pull.state, clock, collect: () => giveMemoryBack(log) }, until),
      rememberPodPrefixes(this.#agent, { sources, memory }, until),
    ].map(async (loop) => {
      try {
        await loop;
      } catch (error) {
        broken.abort();
        throw error;
      }
    });
    // Until all have ended: the place is not given free while one still writes.
    const ends = await Promise.allSettled(loops);
    if (memory.isBehind) await this.#keepLastTime(memory);
    this.#running = undefined;
    running.locks.release();
    const bug = ends.find((end) => end.status === "rejected");
    if (bug !== undefined) throw bug.reason;
  }

  /**
   * Runs until a full picture has been written and applied and this node's announcement accepted. Throws
   * ClusternetError with exit 69 when the UDP port is taken, with exit 75 when `timeoutMs` run out, with exit 3 when all
   * of that is done, but for prefixes that are not announced.
   */
  async runOnce(timeoutMs: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const until = AbortSignal.any([signal, stop.signal]);
    const running = this.run(until);
    const ended = running.then(
      () => undefined,
      () => undefined,
    );
    const failure = await Promise.race([this.#finishOnce(timeoutMs, until), ended]);
    stop.abort();
    await running;
    if (failure !== undefined) throw failure;
  }

  /**
   * What a run would do now, without doing any of it: waits for a full picture, and the source of the pod prefixes, and
   * compares. Takes no place, makes no key, so it works beside a running agent. Throws ClusternetError with exit 75 when
   * `timeoutMs` run out.
   */
  async preview(timeoutMs: number, signal: AbortSignal): Promise<Preview> {
    return await previewRun(this.#agent, timeoutMs, signal);
  }

  /** What `/status` answers. */
  async status(): Promise<Status> {
    return await this.#status.status();
  }

  /** The disk may take again what it refused before: the next start, or `down`, has nothing else to know it by. */
  async #keepLastTime(memory: AgentMemory): Promise<void> {
    try {
      await memory.keep();
    } catch (error) {
      this.#agent.log.warn(
        `${describeInLine(error)}. The next start, or \`down\`, does not know what was added to this host since`,
      );
    }
  }

  /** The kernel's hints are for all who look at the host. */
  async #watchHost({ host, pull, underlay }: RunningAgent, signal: AbortSignal): Promise<void> {
    for await (const hint of host.hints(signal, () => underlay.devices)) {
      if (hint.mesh) pull.hint();
      if (hint.underlay) underlay.hint();
    }
  }

  async #watchProblems({ own }: RunningAgent, signal: AbortSignal): Promise<void> {
    const ofCurator = async (): Promise<void> => {
      for await (const problems of this.#agent.curator.problems.watch(signal)) {
        this.#agent.problems.replace("curator", problems);
      }
    };
    const ofOwn = async (): Promise<void> => {
      for await (const { problems } of own.watch(signal)) this.#agent.problems.replace("own", problems);
    };
    await Promise.all([ofCurator(), ofOwn()]);
  }

  /** Waits until a run has done all there is to do, or `signal` aborts. Returns what keeps it from that. */
  async #finishOnce(timeoutMs: number, signal: AbortSignal): Promise<ClusternetError | undefined> {
    const { self, clock, problems } = this.#agent;
    const endMs = clock.nowMs() + timeoutMs;
    while (!signal.aborted) {
      const missing = this.#missingOfOnce();
      const current = problems.current();
      if (missing.length === 0) return notAllAnnounced(current, self);
      const taken = current.find(({ kind }) => kind === "port-in-use");
      if (taken !== undefined) return new ClusternetError(taken.message, { exit: exitStatus.unavailable });
      if (clock.nowMs() >= endMs) {
        return tooLate("finish", { timeoutMs, missing, problems: current, self });
      }
      // The loops change too much in too many places to ring a bell in each; a look now and then is cheap.
      await clock.sleep(Math.min(20, endMs - clock.nowMs()), signal);
    }
    return undefined;
  }

  #missingOfOnce(): readonly string[] {
    const running = this.#running;
    if (running === undefined) return ["the agent is starting"];
    const { heardOut, holds } = running.pull.state.get();
    const isUnwritten =
      running.memory.isBehind ||
      this.#agent.problems.current().some(({ kind }) => kind === "file-unwritable");
    return [
      ...(running.sources.podNetworkState.get().answered ? [] : [sourceIsSilent]),
      ...(heardOut ? [] : ["no full picture has come from a Curator"]),
      ...(holds ? [] : ["the mesh is not applied"]),
      // The host is as wanted without them, but what comes after this run relies on them.
      ...(isUnwritten ? ["not every file could be written"] : []),
      ...(running.push.isSettled
        ? []
        : [
            running.push.awaitsStatus
              ? "the announcement has not been accepted: the Curator has no status of this node, which is reported after 10 s (--report-status on reports it at once)"
              : "the announcement has not been accepted",
          ]),
    ];
  }
}

/** Kinds of problems that keep a prefix of this node from being announced. */
const notAnnounced: readonly ProblemKind[] = [
  "announce-refused",
  "prefix-malformed",
  "prefix-outside",
  "prefix-too-wide",
];

/** What a script must be able to tell: the mesh is applied, but not all that this node was given is announced. */
function notAllAnnounced(problems: readonly Problem[], self: NodeId): ClusternetError | undefined {
  const messages = problems
    .filter(({ kind, nodeId }) => nodeId === self && notAnnounced.includes(kind))
    .map(({ message }) => message);
  return messages.length === 0
    ? undefined
    : new ClusternetError(
        `The mesh is applied, but not all of this node is announced: ${messages.join("; ")}`,
        { exit: exitStatus.problems },
      );
}
