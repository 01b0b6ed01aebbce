/**
 * The question who leads, asked of one Curator as long as its connection is used: at each end of an answer it may be
 * another one.
 */
import { Backoff, type BackoffSchedule, type Clock } from "../async.ts";
import type { LeaderAnswer, NamedCurator } from "../core/curators.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import { type CuratorConnection, isUnimplemented } from "./connection.ts";

/** Between questions, on one connection: the answer of the real one stands until the leader changes. */
const leaderBackoff: BackoffSchedule = { firstMs: 500, capMs: 60_000 };
/** A Curator that does not lead is given this long to say who does. */
const leaderAnswerMs = 5_000;

/** Who judges the leaders that are named. */
export interface LeaderJudge {
  /** The leader that was named, if it can be followed; else why not. */
  leaderOf(answer: LeaderAnswer): NamedCurator | string;
  /** That leader could not be reached lately. */
  isLost(address: string): boolean;
}

export interface LeaderQuestionParts {
  readonly clock: Clock;
  readonly log: Logger;
  /** Of the Curator that is asked. */
  readonly address: string;
  readonly connection: Pick<CuratorConnection, "watchLeader">;
  readonly follower: LeaderJudge;
  /** A Curator that knows itself names another one as leader, which may be reached. */
  readonly onOther: (leader: NamedCurator) => void;
}

export class LeaderQuestion {
  readonly #parts: LeaderQuestionParts;
  #leader: NamedCurator | undefined;
  #reason = "";
  /** Resolved when it has been said who leads, or cannot be. */
  readonly #said = Promise.withResolvers<void>();

  constructor(parts: LeaderQuestionParts) {
    this.#parts = parts;
  }

  /** Another Curator that leads, by what this one says. */
  get leader(): NamedCurator | undefined {
    return this.#leader;
  }

  /** Why the leader that it names is not followed; else empty. */
  get reason(): string {
    return this.#reason;
  }

  /** Keeps asking until `end` aborts. */
  async run(end: AbortSignal): Promise<void> {
    const { address, clock, connection, log } = this.#parts;
    const backoff = new Backoff(leaderBackoff, clock);
    while (!end.aborted) {
      const askedMs = clock.nowMs();
      try {
        for await (const answer of connection.watchLeader(end)) {
          this.#take(answer);
          this.#said.resolve();
        }
      } catch (error) {
        log.debug("A Curator does not say who leads", { curator: address, reason: messageOf(error) });
        if (isUnimplemented(error)) break;
      }
      this.#said.resolve();
      if (end.aborted) break;
      if (clock.nowMs() - askedMs >= leaderBackoff.capMs) backoff.reset();
      await clock.sleep(backoff.next(), end);
    }
    this.#said.resolve();
  }

  /** Waits a while for the word who leads. */
  async hear(end: AbortSignal): Promise<void> {
    const heard = new AbortController();
    void this.#said.promise.then(() => heard.abort());
    await this.#parts.clock.sleep(leaderAnswerMs, AbortSignal.any([end, heard.signal]));
  }

  #take(answer: LeaderAnswer): void {
    const { address, follower, onOther } = this.#parts;
    const named = follower.leaderOf(answer);
    const knowsItself = answer.thisNodeId !== "";
    this.#leader = undefined;
    this.#reason = "";
    if (knowsItself && answer.thisNodeId === answer.leaderNodeId) return;
    if (typeof named === "string") {
      this.#reason = `; ${named}`;
      return;
    }
    if (named.address === address) return;
    this.#leader = named;
    // One that does not say which node it is may be the leader itself, under another address: as long as it serves it
    // is not left. Nor is it left for a leader that cannot be reached.
    if (knowsItself && !follower.isLost(named.address)) onOther(named);
  }
}
