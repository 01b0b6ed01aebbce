/**
 * What a running agent says of itself: the status, whether it is ready, and what of it hangs.
 */
import type { Agent } from "./agent.ts";
import type { SeenHost } from "./core/host-state.ts";
import { messageOf } from "./errors.ts";
import type { RunningAgent } from "./start.ts";
import { buildStatus, fromFileRemark, type Status } from "./status.ts";
import type { StatusHandlers } from "./status-socket.ts";
import { version } from "./version.ts";

/** A host that takes longer to be read (`wg` hangs) is told of as it was last seen: who asks waits 2 s (commands/status.ts). */
const statusReadMs = 1_000;
/** Longer without a turn of its loop, and the agent says that it is not healthy. */
const healthyTurnMs = 60_000;

/** What of a running agent is told. */
export interface Told extends Pick<RunningAgent, "startedAt"> {
  readonly key: Pick<RunningAgent["key"], "publicKey">;
  readonly host: Pick<RunningAgent["host"], "read">;
  readonly own: Pick<RunningAgent["own"], "get">;
  readonly pull: Pick<RunningAgent["pull"], "state" | "mesh" | "lastTurnMs">;
  readonly push: Pick<RunningAgent["push"], "state" | "lastTurnMs">;
  readonly underlay: Pick<RunningAgent["underlay"], "lastTurnMs">;
  readonly housekeeping: Pick<RunningAgent["housekeeping"], "lastTurnMs">;
}

/** Says what holds at the moment in which it is asked. */
export class AgentStatus implements StatusHandlers {
  readonly #agent: Agent;
  readonly #running: () => Told | undefined;

  /** `running`: what runs now. */
  constructor(agent: Agent, running: () => Told | undefined) {
    this.#agent = agent;
    this.#running = running;
  }

  async status(): Promise<Status> {
    const { self, curator, interfaceName, listenPort, clock } = this.#agent;
    const running = this.#running();
    const read = await this.#readHost(running);
    // All of one moment, after the wait.
    const state = running?.pull.state.get();
    const pushed = running?.push.state.get();
    const own = running?.own.get();
    const seen = read ?? state?.seen;
    const problems = this.#agent.problems.current();
    return buildStatus({
      version,
      agent: {
        running: running !== undefined,
        pid: process.pid,
        ...(running === undefined ? {} : { startedAt: running.startedAt }),
        notReady: this.notReady(),
        remarks: this.remarks(),
        unhealthy: this.unhealthy(),
      },
      node: {
        id: self,
        announced: pushed?.announced?.prefixes ?? [],
        removed: problems.some(({ isRemoval }) => isRemoval === true),
        ...(running === undefined ? {} : { publicKey: running.key.publicKey }),
        ...(own?.externalAddress === undefined ? {} : { externalAddress: own.externalAddress }),
        ...(pushed?.announcedAt === undefined ? {} : { announcedAt: pushed.announcedAt }),
      },
      curator: curator.state.get(),
      ...(state?.source === undefined ? {} : { source: state.source }),
      ...(state?.sourceAt === undefined ? {} : { sourceAt: state.sourceAt }),
      interfaceName,
      ...(seen?.interface === undefined ? {} : { interface: seen.interface }),
      isHostUnseen: seen === undefined,
      mesh: running?.pull.mesh ?? { peers: [] },
      listenPort,
      problems,
      now: clock.wallTime(),
    });
  }

  notReady(): readonly string[] {
    const state = this.#running()?.pull.state.get();
    if (state === undefined) return ["the agent is starting"];
    if (state.applied) return [];
    const blocking = this.#agent.problems
      .current()
      .filter(({ kind }) => ["port-in-use", "interface-foreign", "apply-failed"].includes(kind))
      .map(({ message }) => message);
    if (blocking.length > 0) return blocking;
    return ["no mesh has been applied yet, neither that of the last file nor a full picture of a Curator"];
  }

  remarks(): readonly string[] {
    const state = this.#running()?.pull.state.get();
    if (state?.applied !== true || state.source !== "file" || state.sourceAt === undefined) return [];
    return [fromFileRemark(state.sourceAt, this.#agent.clock.wallTime())];
  }

  unhealthy(): readonly string[] {
    const running = this.#running();
    if (running === undefined) return ["the agent is starting"];
    const loops = {
      "the mesh": running.pull.lastTurnMs,
      "the announcement": running.push.lastTurnMs,
      "the underlay": running.underlay.lastTurnMs,
      "the data directory": running.housekeeping.lastTurnMs,
    };
    return Object.entries(loops).flatMap(([what, lastTurnMs]) => {
      const sinceMs = this.#agent.clock.nowMs() - lastTurnMs;
      return sinceMs > healthyTurnMs
        ? [`${what} was last looked at ${Math.round(sinceMs / 1000)} s ago`]
        : [];
    });
  }

  async #readHost(running: Told | undefined): Promise<SeenHost | undefined> {
    const done = new AbortController();
    try {
      const late = this.#agent.clock.sleep(statusReadMs, done.signal).then(() => undefined);
      return await Promise.race([running?.host.read(), late]);
    } catch (error) {
      // The status answers all the same, with what was seen last.
      this.#agent.log.debug("Cannot read this host for the status", { error: messageOf(error) });
      return undefined;
    } finally {
      done.abort();
    }
  }
}
