/**
 * The errors of a run that has an end (`--once`, `--dry-run`): what did not come about in its time (exit 75), the interface
 * (75) and the port (69) that others have, and what is done but for prefixes of this node (3). A script must be able to tell them apart, of a run
 * and of a preview alike.
 */
import type { NodeId } from "./core/node.ts";
import { quote, type Problem, type ProblemKind } from "./core/problem.ts";
import type { CuratorState } from "./curator/follower.ts";
import { ClusternetError, exitStatus, type ExitStatus } from "./errors.ts";

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

/** What is missing while no full picture has come, and of whom: the first try at an address that is silent takes seconds. */
export function pictureMissing({ state, address }: CuratorState): string {
  const found = "no full picture has come from a Curator";
  return address === undefined ? found : `${found} (${state} to ${quote(address)})`;
}

/** The port of this node is held by others: no waiting helps. Undefined: none of the problems says so. */
export function portTaken(problems: readonly Problem[]): ClusternetError | undefined {
  return errorOf("port-in-use", problems, exitStatus.unavailable);
}

/** An interface of somebody else has the name: a run waits for its time. Undefined: none of the problems says so. */
export function interfaceTaken(problems: readonly Problem[]): ClusternetError | undefined {
  return errorOf("interface-foreign", problems, exitStatus.temporary);
}

function errorOf(
  wanted: ProblemKind,
  problems: readonly Problem[],
  exit: ExitStatus,
): ClusternetError | undefined {
  const found = problems.find(({ kind }) => kind === wanted);
  return found === undefined ? undefined : new ClusternetError(found.message, { exit });
}

/** Kinds of problems that keep a prefix of this node from being announced. */
const notAnnounced: readonly ProblemKind[] = [
  "announce-refused",
  "prefix-malformed",
  "prefix-outside",
  "prefix-too-wide",
];

/** `found` says so in front of the reasons. Undefined: nothing of what this node was given is left out. */
export function notAllAnnounced(
  found: string,
  { problems, self }: { readonly problems: readonly Problem[]; readonly self: NodeId },
): ClusternetError | undefined {
  const messages = problems
    .filter(({ kind, nodeId }) => nodeId === self && notAnnounced.includes(kind))
    .map(({ message }) => message);
  return messages.length === 0
    ? undefined
    : new ClusternetError(`${found}: ${messages.join("; ")}`, { exit: exitStatus.problems });
}
