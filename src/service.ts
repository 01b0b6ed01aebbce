/**
 * `Service`: the whole agent on one AbortSignal. The command line is a thin user of it.
 *
 * Starting takes the place (lock), the key, the last file and the host as they are, and changes nothing that is
 * right already; the Curator is called meanwhile. From then on pull and push work side by side and neither ends before
 * the signal aborts. Ending takes nothing away: interface, routes, file and announcement stay (C4.11).
 */
import { Value } from "./async.ts";
import { createAgent, type Agent, type ServiceOptions } from "./agent.ts";
import { AgentStatus } from "./agent-status.ts";
import { quote, type Problem, type ProblemKind } from "./core/problem.ts";
import { type ClusternetError, describeInLine } from "./errors.ts";
import type { AgentMemory } from "./host/state-file.ts";
import { notAllAnnounced, pictureMissing, portTaken, tooLate } from "./once-errors.ts";
import { followOwn, sourceIsSilent } from "./own.ts";
import { previewRun, type Preview } from "./preview.ts";
import { rememberCurators, rememberPodPrefixes } from "./remember.ts";
import { startAgent, type RunningAgent } from "./start.ts";
import { giveMemoryBack, spareMemory } from "./spare-memory.ts";
import type { Status } from "./status.ts";
import { watchTimeOfDay } from "./time-watch.ts";

export class Service {
  readonly #agent: Agent;
  readonly #status: AgentStatus;
  /** Nothing is told to a Curator before it is true. */
  readonly #mayTell = new Value(true);
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
    this.#mayTell.set(true);
    await this.#runLoops(signal);
  }

  async #runLoops(signal: AbortSignal): Promise<void> {
    // One loop that ends by a bug must end the others, or the agent would live on half.
    const broken = new AbortController();
    const until = AbortSignal.any([signal, broken.signal]);
    const running = await startAgent(
      this.#agent,
      { handlers: this.#status, mayTell: this.#mayTell },
      until,
    ).catch((error: unknown) => {
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
   * Runs until a full picture has been written and applied and this node's announcement accepted. Nothing is told to a
   * Curator before this host is ready for it, so that what fails here stays here. Throws
   * ClusternetError with exit 69 when the UDP port is taken, with exit 75 when `timeoutMs` run out, with exit 3 when all
   * of that is done, but for prefixes that are not announced.
   */
  async runOnce(timeoutMs: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const until = AbortSignal.any([signal, stop.signal]);
    this.#mayTell.set(false);
    const running = this.#runLoops(until);
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
      const current = problems.current();
      const taken = portTaken(current);
      if (taken !== undefined) return taken;
      if (!this.#mayTell.get() && this.#isHostReady(current)) this.#mayTell.set(true);
      const missing = this.#missingOfOnce(current);
      if (missing.length === 0) {
        const found = "The mesh is applied, but not all of this node is announced";
        return notAllAnnounced(found, { problems: current, self });
      }
      if (clock.nowMs() >= endMs) {
        return tooLate("finish", { timeoutMs, missing, self, ...this.#whyUnfinished(current) });
      }
      // The loops change too much in too many places to ring a bell in each; a look now and then is cheap.
      await clock.sleep(Math.min(20, endMs - clock.nowMs()), signal);
    }
    return undefined;
  }

  #missingOfOnce(problems: readonly Problem[]): readonly string[] {
    const running = this.#running;
    if (running === undefined) return ["the agent is starting"];
    const { pull, push, sources, housekeeping } = running;
    const { curator } = this.#agent;
    const { heardOut, holds } = pull.state.get();
    const notWritten = !housekeeping.hasTurned || problems.some(({ kind }) => kind === "file-unwritable");
    return [
      ...(sources.podNetworkState.get().answered ? [] : [sourceIsSilent]),
      ...(heardOut ? [] : [pictureMissing(curator.state.get())]),
      ...(holds ? [] : ["the mesh is not applied"]),
      // The host is as wanted without them, but what comes after this run relies on them.
      ...(notWritten ? ["not every file could be written"] : []),
      ...(push.isSettled
        ? []
        : [
            this.#mayTell.get()
              ? "the announcement has not been accepted"
              : "before that this node is not announced",
          ]),
    ];
  }

  /**
   * This host is ready for what is announced: of what can fail here nothing has. One bad peer is that node's own matter,
   * and the Curator's picture no matter of this host: whoever waits for it waits for the answer to the announcement
   * meanwhile.
   */
  #isHostReady(problems: readonly Problem[]): boolean {
    const running = this.#running;
    if (running?.housekeeping.hasTurned !== true) return false;
    const isBroken = problems.some(({ kind, nodeId }) => nodeId === undefined && ofHost.includes(kind));
    return running.pull.state.get().compared && !isBroken;
  }

  /** The problems that may be why, and what to do where that is known. */
  #whyUnfinished(problems: readonly Problem[]): {
    readonly problems: readonly Problem[];
    readonly hint?: string;
  } {
    const { self } = this.#agent;
    const message = this.#running?.push.statusRefusal;
    if (message === undefined) return { problems };
    return {
      problems: [{ kind: "announce-refused", nodeId: self, message }, ...problems],
      hint:
        `Is there a node ${quote(self)} in this cluster? If nobody else reports its status this node does, 10 s after the ` +
        "Curator has first said so: give --timeout that much more, or --report-status on to report it at once",
    };
  }
}

/** Kinds of problems that are this host's, and keep it from being of use to other nodes. */
const ofHost: readonly ProblemKind[] = [
  "port-in-use",
  "interface-foreign",
  "apply-failed",
  "file-unwritable",
];
