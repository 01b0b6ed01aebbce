/**
 * The error of a run that is done but for prefixes of this node that are not announced (exit 3): what a script must be
 * able to tell, of a run and of a preview alike.
 */
import type { NodeId } from "./core/node.ts";
import type { Problem, ProblemKind } from "./core/problem.ts";
import { ClusternetError, exitStatus } from "./errors.ts";

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
