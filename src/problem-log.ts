/**
 * The book of problems: who reported what, since when. Logs a problem when it begins and when it ends, once each.
 *
 * Every part of the agent replaces its own list (its `source`) as a whole, as often as it likes; only what
 * differs from the list before is an event. Two problems are the same when kind, node and message are. One
 * reported by two sources is one problem: it ends when the last of them lets go.
 *
 * Each node has so many lines a minute and a count of the rest, or one that changes its bad data all the time would
 * flood the log of every other node. What lasts (`current`) is exact whatever was logged.
 */
import type { Clock } from "./async.ts";
import { type Problem, quote } from "./core/problem.ts";
import type { Logger } from "./log.ts";

/** A problem that lasts. */
export interface LastingProblem extends Problem {
  readonly since: Date;
}

/** So many beginnings, and endings, of one change are logged singly; then their number. */
const loggedSingly = 20;

/** So many beginnings and endings of one node are logged in a minute: all that 16 problems kept of a node begin with. */
const linesOfNode = 20;
const minuteMs = 60_000;

/** The lines of one node, or of what belongs to none, in the minute that began with the first of them. */
interface Budget {
  readonly sinceMs: number;
  readonly nodeId: Problem["nodeId"];
  lines: number;
  begun: number;
  ended: number;
}

interface Entry {
  readonly problem: LastingProblem;
  readonly sources: Set<string>;
}

export class ProblemLog {
  readonly #log: Logger;
  readonly #clock: Pick<Clock, "wallTime" | "nowMs">;
  readonly #entries = new Map<string, Entry>();
  readonly #keysOf = new Map<string, ReadonlySet<string>>();
  readonly #listOf = new Map<string, readonly Problem[]>();
  /** By `budgetOf`, the oldest first. */
  readonly #budgets = new Map<string, Budget>();

  constructor(log: Logger, clock: Pick<Clock, "wallTime" | "nowMs">) {
    this.#log = log;
    this.#clock = clock;
  }

  /** From now on these are all the problems that `source` knows of. The same array again is nothing new. */
  replace(source: string, problems: readonly Problem[]): void {
    if (this.#listOf.get(source) === problems) {
      this.#closeMinutes();
      return;
    }
    this.#listOf.set(source, problems);
    const before = this.#keysOf.get(source) ?? new Set();
    const after = new Set<string>();
    const begun: Problem[] = [];
    const ended: Problem[] = [];
    const since = this.#clock.wallTime();
    for (const problem of problems) {
      const key = keyOf(problem);
      after.add(key);
      const entry = this.#entries.get(key);
      if (entry !== undefined) {
        entry.sources.add(source);
        continue;
      }
      this.#entries.set(key, { problem: { ...problem, since }, sources: new Set([source]) });
      begun.push(problem);
    }
    for (const key of before) {
      const entry = this.#entries.get(key);
      if (entry === undefined || after.has(key)) continue;
      entry.sources.delete(source);
      if (entry.sources.size > 0) continue;
      this.#entries.delete(key);
      ended.push(entry.problem);
    }
    this.#keysOf.set(source, after);
    this.#closeMinutes();
    this.#tell(begun, "begun", (problem) => this.#log.warn(problem.message, fieldsOf(problem)));
    this.#tell(ended, "ended", (problem) =>
      this.#log.info(`No longer: ${problem.message}`, fieldsOf(problem)),
    );
  }

  /** All problems that last, those of the host and the Curator first, then by node, kind and message. */
  current(): readonly LastingProblem[] {
    return [...this.#entries.values()]
      .map(({ problem }) => problem)
      .toSorted(
        (a, b) =>
          compareTexts(a.nodeId ?? "", b.nodeId ?? "") ||
          compareTexts(a.kind, b.kind) ||
          compareTexts(a.message, b.message),
      );
  }

  #tell(problems: readonly Problem[], which: "begun" | "ended", one: (problem: Problem) => void): void {
    let singly = 0;
    let more = 0;
    for (const problem of problems) {
      const budget = this.#budgetOf(problem);
      if (budget.lines >= linesOfNode) {
        budget[which]++;
      } else if (singly < loggedSingly) {
        singly++;
        budget.lines++;
        one(problem);
      } else {
        more++;
      }
    }
    if (more === 0) return;
    const happened = which === "begun" ? "began" : "ended";
    this.#log.warn(`${more} more problems ${happened}; all that last are in the status`, { count: more });
  }

  #budgetOf(problem: Problem): Budget {
    const name = budgetName(problem);
    let budget = this.#budgets.get(name);
    if (budget === undefined) {
      budget = { sinceMs: this.#clock.nowMs(), nodeId: problem.nodeId, lines: 0, begun: 0, ended: 0 };
      this.#budgets.set(name, budget);
    }
    return budget;
  }

  /**
   * Tells what was left out in the minutes that are over. There is no timer for it: every part replaces its list at
   * `--resync` at the latest.
   */
  #closeMinutes(): void {
    for (const [name, { sinceMs, nodeId, begun, ended }] of this.#budgets) {
      if (this.#clock.nowMs() - sinceMs < minuteMs) return;
      this.#budgets.delete(name);
      if (begun + ended === 0) continue;
      const whose = nodeId === undefined ? "" : ` of node ${quote(nodeId)}`;
      this.#log.warn(
        `Left out for a minute: ${begun} more problems${whose} began, ${ended} ended; all that last are in the status`,
        { begun, ended, node: nodeId },
      );
    }
  }
}

/**
 * A node that is named has its own budget. Nodes whose very ID cannot be used share one, so that they cannot silence
 * what is said of the host and the Curator.
 */
function budgetName({ kind, nodeId }: Problem): string {
  return nodeId ?? (kind === "node-id" ? " nameless" : "");
}

function keyOf({ kind, nodeId, message }: Problem): string {
  // A node ID has no spaces and a kind neither, so this cannot be read in two ways.
  return `${kind} ${nodeId ?? ""} ${message}`;
}

function fieldsOf({ kind, nodeId }: Problem): { problem: string; node: string | undefined } {
  return { problem: kind, node: nodeId };
}

function compareTexts(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
