/**
 * push: what this node claims, told to the Curator until it holds.
 *
 * One loop with a bell, as pull: it announces when what is wanted differs from what was last accepted, and again
 * when the Curator's picture shows this node otherwise than announced (C4.2). Every refusal is tried again with
 * backoff and reported; of one that is for some prefixes only, announcer.ts announces the others. Stopping withdraws
 * nothing: the announcement stays at the Curator (C4.11).
 */
import { Announcer, type AnnounceRequest } from "./announcer.ts";
import {
  Backoff,
  Bell,
  Value,
  announceBackoff,
  pulseMs,
  removedBackoff,
  type Clock,
  type Watched,
} from "./async.ts";
import { isAnnounced, type Announcement } from "./core/announcement.ts";
import type { Node, NodeId } from "./core/node.ts";
import type { Address } from "./core/prefix.ts";
import { isRemoved, removedProblem, type CuratorConnection } from "./curator/connection.ts";
import { CuratorError, describeInLine } from "./errors.ts";
import type { Logger } from "./log.ts";
import type { Own } from "./own.ts";
import type { ProblemLog } from "./problem-log.ts";
import type { PullState } from "./pull.ts";

/** gRPC status FAILED_PRECONDITION: to an announcement a Curator answers it while it has no status of the node (C2). */
const failedPrecondition = 9;
/** `auto` reports the status itself when the Curator has missed one for this long (C5). */
const missingStatusMs = 10_000;
/** Events that were on their way when an announcement was accepted still show the node as it was: so long they mean nothing. */
const sightMs = 1000;
/** Somebody else announces for this node: so many reversals in so long a time (C8) … */
const contestedReversals = 3;
const contestedWindowMs = 5 * 60_000;
/** … and then it is announced again only this often. */
const contestedPauseMs = 10 * 60_000;

export interface PushSettings {
  readonly self: NodeId;
  readonly reportStatus: "auto" | "on" | "off";
}

export interface PushParts {
  readonly own: Watched<Own>;
  readonly pull: Watched<PullState>;
  readonly connection: Watched<CuratorConnection | undefined>;
  /** While it is false nothing is told to a Curator. */
  readonly mayTell: Watched<boolean>;
  readonly problems: ProblemLog;
  readonly log: Logger;
  readonly clock: Clock;
}

export interface PushState {
  /** As last accepted. */
  readonly announced?: Announcement;
  readonly announcedAt?: Date;
}

/** Which sight of this node in the picture an announcement was made after. */
interface Sight {
  readonly stream: number;
  readonly node: Node | undefined;
}

export class Push {
  readonly state = new Value<PushState>({});
  readonly #settings: PushSettings;
  readonly #parts: PushParts;
  readonly #bell = new Bell();
  readonly #backoff: Backoff;
  readonly #removedBackoff: Backoff;
  /** When to try again; undefined: nothing waits for a time. */
  #retryAtMs: number | undefined;
  #lastTurnMs = 0;
  /** The Curator knows this node no more: another try at once would only be one more. */
  #removed = false;
  /** What goes on over a connection is stopped when there is another one, or none: over a dead one it would wait for its limit. */
  #calls: { readonly connection: CuratorConnection | undefined; readonly stop: AbortController } = {
    connection: undefined,
    stop: new AbortController(),
  };
  readonly #announcer: Announcer;
  /** When, and after which sight, the last announcement was accepted. */
  #accepted: { readonly sight: Sight; readonly atMs: number } | undefined;
  #reported: string | undefined;
  #reportedAtMs = 0;
  #reporting: boolean;
  #missingStatus: { readonly sinceMs: number; readonly message: string } | undefined;
  #reversalsMs: readonly number[] = [];

  constructor(settings: PushSettings, parts: PushParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.#reporting = settings.reportStatus === "on";
    this.#backoff = new Backoff(announceBackoff, parts.clock);
    this.#removedBackoff = new Backoff(removedBackoff, parts.clock);
    this.#announcer = new Announcer(settings.self, parts.clock);
  }

  /** Everything that this node has to say was accepted, but for prefixes that the Curator refuses by themselves. */
  get isSettled(): boolean {
    const { own } = this.#parts;
    const { claim, externalAddress } = own.get();
    return !this.#isReportDue(externalAddress) && this.#announcer.isSettled(claim.announcement);
  }

  /**
   * What the Curator says of it while it misses a status of this node and this node leaves it to others to report it, for
   * now; else undefined. With "auto" this is how every start goes at our own Curator, and no problem before it lasts.
   */
  get statusRefusal(): string | undefined {
    return this.#settings.reportStatus === "auto" && !this.#reporting
      ? this.#missingStatus?.message
      : undefined;
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  /** Until `signal` aborts. Never throws for what the Curator answers. */
  async run(signal: AbortSignal): Promise<void> {
    const ring = async (source: Watched<unknown>, newStart: boolean): Promise<void> => {
      for await (const _changed of source.watch(signal)) {
        // Another Curator, or something else to say, is worth a try at once.
        if (newStart && !this.#removed) this.#retryAtMs = undefined;
        this.#bell.poke();
      }
    };
    const { own, pull, connection, mayTell } = this.#parts;
    const cutCalls = async (): Promise<void> => {
      for await (const current of connection.watch(signal)) {
        if (current !== this.#calls.connection) this.#calls.stop.abort();
      }
    };
    await Promise.all([
      cutCalls(),
      ring(own, true),
      ring(connection, true),
      ring(pull, false),
      ring(mayTell, false),
      this.#loop(signal),
    ]);
  }

  async #loop(signal: AbortSignal): Promise<void> {
    const { clock, connection, own, mayTell } = this.#parts;
    while (!signal.aborted) {
      this.#lastTurnMs = clock.nowMs();
      const current = connection.get();
      const isOpen = mayTell.get() && this.#parts.pull.get().compared;
      if (current !== undefined && isOpen && clock.nowMs() >= (this.#retryAtMs ?? 0)) {
        this.#retryAtMs = undefined;
        const claim = own.get();
        this.#calls = { connection: current, stop: new AbortController() };
        await this.#turn(current, AbortSignal.any([signal, this.#calls.stop.signal]));
        // What failed was the old claim, or the old Curator.
        if ((own.get() !== claim || connection.get() !== current) && !this.#removed)
          this.#retryAtMs = undefined;
      }
      // Without a connection, or an interface, there is nothing to do at that time.
      const retryAtMs =
        connection.get() === undefined || !isOpen
          ? Infinity
          : Math.min(this.#retryAtMs ?? Infinity, this.#announcer.wakeAtMs);
      await this.#bell.wait(Math.min(Math.max(0, retryAtMs - clock.nowMs()), pulseMs), signal, clock);
    }
  }

  /** Reports and announces what is due over this connection. Sets when to try again if anything failed. */
  async #turn(connection: CuratorConnection, signal: AbortSignal): Promise<void> {
    const { own, pull, problems, clock } = this.#parts;
    const { externalAddress, claim } = own.get();
    this.#forgetReversals();
    try {
      const sight: Sight = { stream: pull.get().stream, node: pull.get().selfNode };
      if (this.#isAddressReplaced(externalAddress, sight) && this.#mayReverse()) {
        this.#countReversal(sight);
        this.#reported = undefined;
      }
      if (this.#mustWaitToReport(externalAddress)) return;
      await this.#reportIfDue(connection, externalAddress, signal);
      const request = { connection, ...this.#requestOf(claim.announcement, externalAddress, sight) };
      const due = this.#isDue(request, sight);
      if (due !== "no" && (await this.#announce(request, sight, signal)) === "waiting") return;
      // Not one that was refused: it is tried again, and nobody else has replaced anything meanwhile.
      if (due === "reversal") this.#countReversal(sight);
      this.#backoff.reset();
      this.#removedBackoff.reset();
      this.#removed = false;
      this.#missingStatus = undefined;
      problems.replace("push", this.#announcer.problems);
    } catch (error) {
      if (signal.aborted) return;
      const wasReporting = this.#reporting;
      this.#refused(error);
      this.#removed = isRemoved(error);
      const waitMs = (this.#removed ? this.#removedBackoff : this.#backoff).next();
      // Not some backoff later than a status that has been missing for long enough is to be reported.
      const latestMs = this.#reporting ? Infinity : Math.max(this.#statusDueMs, clock.nowMs());
      this.#retryAtMs =
        this.#reporting && !wasReporting ? clock.nowMs() : Math.min(clock.nowMs() + waitMs, latestMs);
    }
  }

  /**
   * A status is not reported before this node's own was watched, or is known not to be there: the rest of it is sent
   * back. The announcement waits too, since a Curator without status refuses it.
   */
  #mustWaitToReport(externalAddress: Address | undefined): boolean {
    const { heardOut, selfStatus } = this.#parts.pull.get();
    return this.#isReportDue(externalAddress) && !heardOut && selfStatus === undefined;
  }

  /** The picture shows another address than the one that was reported: somebody else reports for this node. */
  #isAddressReplaced(externalAddress: Address | undefined, { node }: Sight): boolean {
    const shown = node?.externalAddress ?? "";
    return (
      this.#reporting &&
      this.#parts.pull.get().heardOut &&
      this.#reported === externalAddress?.text &&
      shown !== "" &&
      shown !== this.#reported &&
      this.#parts.clock.nowMs() >= this.#reportedAtMs + sightMs
    );
  }

  #isReportDue(externalAddress: Address | undefined): externalAddress is Address {
    return this.#reporting && externalAddress !== undefined && this.#reported !== externalAddress.text;
  }

  async #reportIfDue(
    connection: CuratorConnection,
    externalAddress: Address | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const { pull, log, clock } = this.#parts;
    if (!this.#isReportDue(externalAddress)) return;
    const { selfStatus } = pull.get();
    await connection.reportStatus(
      {
        nodeId: this.#settings.self,
        externalAddress,
        time: clock.wallTime(),
        ...(selfStatus === undefined ? {} : { lastStatus: selfStatus }),
      },
      signal,
    );
    this.#reported = externalAddress.text;
    this.#reportedAtMs = clock.nowMs();
    log.info("Reported this node's status", { externalAddress: externalAddress.text });
  }

  #requestOf(
    announcement: Announcement,
    externalAddress: Address | undefined,
    { node }: Sight,
  ): Omit<AnnounceRequest, "connection"> {
    const { own, connection, pull } = this.#parts;
    const current = connection.get();
    return {
      announcement,
      externalAddress,
      shown: node,
      isShown: node !== undefined || pull.get().heardOut,
      isCurrent: () =>
        Bun.deepEquals(own.get().claim.announcement, announcement) && connection.get() === current,
    };
  }

  #isDue(request: AnnounceRequest, sight: Sight): "no" | "news" | "reversal" {
    if (!this.#announcer.isSettled(request.announcement) || this.#announcer.isRetryDue(request))
      return "news";
    const [accepted, announced] = [this.#accepted, this.#announcer.accepted];
    if (accepted === undefined || announced === undefined) return "news";
    const { heardOut } = this.#parts.pull.get();
    const before = accepted.sight;
    if (!heardOut || (before.stream === sight.stream && before.node === sight.node)) return "no";
    if (isAnnounced(announced, sight.node)) {
      this.#accepted = { ...accepted, sight };
      this.#forgetReversals();
      return "no";
    }
    const believedAtMs = accepted.atMs + sightMs;
    if (this.#parts.clock.nowMs() < believedAtMs) {
      this.#retryAtMs = believedAtMs;
      return "no";
    }
    return this.#mayReverse() ? "reversal" : "no";
  }

  /** Announcing again, against what the picture shows: at once a few times, then rarely (C8 `announce-contested`). */
  #mayReverse(): boolean {
    const { clock } = this.#parts;
    this.#forgetReversals();
    const last = this.#reversalsMs.at(-1);
    const isContested = this.#reversalsMs.length >= contestedReversals;
    if (!isContested || last === undefined || clock.nowMs() - last >= contestedPauseMs) return true;
    this.#retryAtMs = last + contestedPauseMs;
    return false;
  }

  #countReversal({ node }: Sight): void {
    const { clock, problems } = this.#parts;
    // A picture that lacks this node was lost by the Curator; that is nobody else's doing.
    if (node !== undefined) this.#reversalsMs = [...this.#reversalsMs, clock.nowMs()];
    // Said with the third one, not when it is taken back again: of two machines only one would say it.
    if (this.#reversalsMs.length >= contestedReversals) {
      problems.replace("contested", [
        {
          kind: "announce-contested",
          nodeId: this.#settings.self,
          message:
            "Somebody else announces for this node: what it announced was replaced three times in five minutes. Is there a second machine with this node's identity?",
        },
      ]);
    }
  }

  #forgetReversals(): void {
    const { clock, problems } = this.#parts;
    const last = this.#reversalsMs.at(-1);
    if (last === undefined) return;
    if (this.#reversalsMs.length < contestedReversals) {
      this.#reversalsMs = this.#reversalsMs.filter((ms) => clock.nowMs() - ms < contestedWindowMs);
    } else if (clock.nowMs() - last > contestedPauseMs + contestedWindowMs) {
      this.#reversalsMs = [];
      problems.replace("contested", []);
    }
  }

  async #announce(request: AnnounceRequest, sight: Sight, signal: AbortSignal): Promise<"taken" | "waiting"> {
    const { log, clock } = this.#parts;
    const before = this.#announcer.accepted;
    if ((await this.#announcer.announce(request, signal)) === "waiting") return "waiting";
    this.#accepted = { sight, atMs: clock.nowMs() };
    const { accepted = request.announcement, problems } = this.#announcer;
    this.state.set({ announced: accepted, announcedAt: clock.wallTime() });
    const prefixes = accepted.prefixes.map((each) => each.text).join(", ");
    // What is refused is tried again and again; that it still is, is known.
    const level =
      before !== undefined && Bun.deepEquals(before, accepted) && problems.length > 0 ? "debug" : "info";
    log[level]("Announced this node", { curator: request.connection.address, prefixes });
    return "taken";
  }

  #refused(error: unknown): void {
    const { problems, clock, log } = this.#parts;
    const isStatusMissing = error instanceof CuratorError && error.code === failedPrecondition;
    const remedy =
      isStatusMissing && this.#settings.reportStatus === "off"
        ? "; hint: With --report-status off somebody else must report this node's status: look whether that runs"
        : "";
    const message = `${describeInLine(error)}${remedy}`;
    this.#missingStatus = isStatusMissing
      ? { sinceMs: this.#missingStatus?.sinceMs ?? clock.nowMs(), message }
      : undefined;
    if (isStatusMissing) {
      // The Curator has no status of this node, whatever was reported before.
      this.#reported = undefined;
      if (clock.nowMs() >= this.#statusDueMs) this.#reporting = true;
    }
    if (this.statusRefusal !== undefined) {
      log.debug("The Curator misses a status of this node; one is reported when nobody else does", {
        message,
      });
      problems.replace("push", []);
      return;
    }
    problems.replace("push", [
      isRemoved(error)
        ? removedProblem(this.#settings.self)
        : { kind: "announce-refused", nodeId: this.#settings.self, message },
    ]);
  }

  /** When `auto` reports the status itself, if the Curator goes on missing it; never with another setting. */
  get #statusDueMs(): number {
    if (this.#settings.reportStatus !== "auto") return Infinity;
    return (this.#missingStatus?.sinceMs ?? Infinity) + missingStatusMs;
  }
}
