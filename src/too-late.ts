/**
 * The error of what did not come about in its time (exit 75): what is missing, and under it the problems of this node
 * that may be why.
 */
import type { NodeId } from "./core/node.ts";
import type { Problem } from "./core/problem.ts";
import { ClusternetError, exitStatus } from "./errors.ts";

/** As many as `describeError` prints below a message. */
const shownProblems = 7;

/**
 * `what` was to be done; `missing` says in words what of it is not. Problems of other nodes keep nobody from anything and
 * are left out; those of `self` come first, since they can be mended here.
 */
export function tooLate(
  what: string,
  {
    timeoutMs,
    missing,
    problems,
    self,
    hint,
  }: {
    readonly timeoutMs: number;
    readonly missing: readonly string[];
    readonly problems: readonly Problem[];
    readonly self: NodeId;
    /** What to do, where the problems do not say it. */
    readonly hint?: string;
  },
): ClusternetError {
  const reasons = [
    ...problems.filter(({ nodeId }) => nodeId === self),
    ...problems.filter(({ nodeId }) => nodeId === undefined),
  ];
  const cause = reasons
    .slice(0, shownProblems)
    .reduceRight<ClusternetError | undefined>(
      (below, { message }) => new ClusternetError(message, below === undefined ? {} : { cause: below }),
      undefined,
    );
  return new ClusternetError(`Cannot ${what} within ${timeoutMs / 1000} s: ${missing.join("; ")}`, {
    exit: exitStatus.temporary,
    ...(cause === undefined ? {} : { cause }),
    ...(hint === undefined ? {} : { hint }),
  });
}
