/**
 * The book of problems: who reported what, since when. Logs a problem when it begins and when it ends, once each.
 *
 * Every part of the agent replaces its own list (its `source`) as a whole, as often as it likes; only what
 * differs from the list before is an event. Two problems are the same when kind, node and message are. One
 * reported by two sources is one problem: it ends when the last of them lets go.
 */
import type { Clock } from "./async.ts";
import type { Problem } from "./core/problem.ts";
import type { Logger } from "./log.ts";

/** A problem that lasts. */
export interface LastingProblem extends Problem {
  readonly since: Date;
}

/** So many beginnings, and endings, of one change are logged singly; then their number. */
const loggedSingly = 20;

interface Entry {
  readonly problem: LastingProblem;
  readonly sources: Set<string>;
}

export class ProblemLog {
  readonly #log: Logger;
  readonly #clock: Pick<Clock, "wallTime">;
  readonly #entries = new Map<string, Entry>();
  readonly #keysOf = new Map<string, ReadonlySet<string>>();

  constructor(log: Logger, clock: Pick<Clock, "wallTime">) {
    this.#log = log;
    this.#clock = clock;
  }

  /** From now on these are all the problems that `source` knows of. */
  replace(source: string, problems: readonly Problem[]): void {
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
    this.#tell(begun, (problem) => this.#log.warn(problem.message, fieldsOf(problem)), "more problems began");
    this.#tell(
      ended,
      (problem) => this.#log.info(`No longer: ${problem.message}`, fieldsOf(problem)),
      "more problems ended",
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

  #tell(problems: readonly Problem[], one: (problem: Problem) => void, rest: string): void {
    for (const problem of problems.slice(0, loggedSingly)) one(problem);
    const more = problems.length - loggedSingly;
    if (more > 0) this.#log.warn(`${more} ${rest}; all that last are in the status`, { count: more });
  }
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
