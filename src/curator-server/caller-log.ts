/**
 * The log of what callers do and are refused for: so many lines a minute for each.
 *
 * A node may change its address, its key and its prefixes as often as it likes, or be refused for one thing and
 * another in turn: its lines must neither fill the disk nor bury those of others. Whoever cannot be told, and so could be
 * anybody, shares one such budget with all of his kind, of which one address has a quarter: a scanner there must not hide
 * the node whose certificate has gone bad. What is left out is counted, and told when that minute is over.
 * A refusal that was left out is not taken for said: it is logged when it comes again and there is room.
 */
import { Status } from "nice-grpc-common";
import { systemClock, type Clock } from "../async.ts";
import type { NodeId } from "../core/node.ts";
import type { LogFields, Logger } from "../log.ts";
import type { Refusal } from "./refusal.ts";

/** More than a node in trouble has to say, each time anew. */
const linesOfCaller = 20;
/** Of those that all have who cannot be told, so many are for one address. */
const linesOfAddress = 5;
const minuteMs = 60_000;
/** Callers with a budget of their own; without TLS anybody can be as many as he likes. */
const knownCallers = 10_000;

/** The lines of one caller in the minute that began with the first of them. */
interface Budget {
  readonly sinceMs: number;
  lines: number;
  leftOut: number;
  /** Of callers who cannot be told: how many of the lines each address has. */
  readonly linesOf: Map<string, number>;
}

/** A log whose lines belong to callers. */
export class CallerLog {
  readonly #log: Logger;
  readonly #clock: Pick<Clock, "nowMs" | "sleep">;
  readonly #closing = new AbortController();
  /** The oldest first; under "" that of all who have none of their own. */
  readonly #budgets = new Map<NodeId | "", Budget>();

  constructor(log: Logger, clock: Pick<Clock, "nowMs" | "sleep"> = systemClock) {
    this.#log = log;
    this.#clock = clock;
  }

  /** What a node has done. The line names it. */
  info(node: NodeId, message: string, fields: LogFields): void {
    if (this.#spend(node)) this.#log.info(message, { node, ...fields });
  }

  /**
   * What a caller is refused for: a node, or an address from which nobody knows who calls. The line names it. False when
   * it was left out.
   */
  warn(caller: NodeId | { readonly address: string }, message: string, fields: LogFields): boolean {
    const isKnown = typeof caller === "string";
    if (!(isKnown ? this.#spend(caller) : this.#spend("", caller.address))) return false;
    this.#log.warn(message, { node: isKnown ? caller : caller.address, ...fields });
    return true;
  }

  /** Tells what was left out so far, and waits for nothing more. May be called twice. */
  close(): void {
    this.#closing.abort();
    for (const [name, budget] of this.#budgets) {
      this.#tellLeftOut(name, budget);
      budget.leftOut = 0;
    }
  }

  #spend(caller: NodeId | "", address?: string): boolean {
    this.#closeMinutes();
    const name = this.#budgets.has(caller) || this.#budgets.size < knownCallers ? caller : "";
    const budget = this.#budgets.get(name) ?? newBudget(this.#clock.nowMs());
    this.#budgets.set(name, budget);
    const ofAddress = address === undefined ? 0 : (budget.linesOf.get(address) ?? 0);
    if (budget.lines >= linesOfCaller || ofAddress >= linesOfAddress) {
      if (budget.leftOut++ === 0) void this.#closeInTime(name, budget);
      return false;
    }
    budget.lines++;
    if (address !== undefined) budget.linesOf.set(address, ofAddress + 1);
    return true;
  }

  /** Whoever was left out may be the last to call for hours. */
  async #closeInTime(name: NodeId | "", budget: Budget): Promise<void> {
    const { signal } = this.#closing;
    // More than once: a timer may come a moment before its time.
    while (!signal.aborted && this.#budgets.get(name) === budget) {
      await this.#clock.sleep(budget.sinceMs + minuteMs - this.#clock.nowMs(), signal);
      this.#closeMinutes();
    }
  }

  #closeMinutes(): void {
    for (const [name, budget] of this.#budgets) {
      if (this.#clock.nowMs() - budget.sinceMs < minuteMs) return;
      this.#budgets.delete(name);
      this.#tellLeftOut(name, budget);
    }
  }

  #tellLeftOut(name: NodeId | "", { leftOut }: Budget): void {
    if (leftOut === 0) return;
    this.#log.warn("Lines of one minute were left out", {
      node: name === "" ? undefined : name,
      count: leftOut,
    });
  }
}

function newBudget(sinceMs: number): Budget {
  return { sinceMs, lines: 0, leftOut: 0, linesOf: new Map() };
}

/** Callers whose last refusal is remembered; the oldest is forgotten, and then logged once more. */
const rememberedRefusals = 10_000;

/** Logs a refusal once, and again only when another one takes its place: agents try again for ever. */
export class RefusalLog {
  readonly #last = new Map<string, string>();
  readonly #log: CallerLog;

  constructor(log: CallerLog) {
    this.#log = log;
  }

  /** A caller was refused: a node, or an address from which nobody knows who calls. */
  add(caller: NodeId | { readonly address: string }, call: string, { code, message }: Refusal): void {
    const key = `${typeof caller === "string" ? caller : caller.address} ${call}`;
    if (this.#last.get(key) === message) return;
    if (!this.#log.warn(caller, message, { call, status: Status[code] })) return;
    for (const oldest of this.#last.keys()) {
      if (this.#last.size < rememberedRefusals) break;
      this.#last.delete(oldest);
    }
    this.#last.set(key, message);
  }

  /** The caller was served: the same refusal is news again. */
  clear(caller: NodeId, call: string): void {
    this.#last.delete(`${caller} ${call}`);
  }
}
