/**
 * What could not be decoded of the events of a stream, as long as it holds: a node that comes again, or goes, takes its old
 * problems with it.
 */
import type { NodeId } from "./core/node.ts";
import type { Problem } from "./core/problem.ts";
import type { DecodedEvent } from "./curator/connection.ts";

/** By the node that it came with; "" for what names no node. */
export type EventProblems = ReadonlyMap<NodeId | "", readonly Problem[]>;

/** Problems of decoding that are kept of one node, and of all that name none. */
const maxEventProblems = 16;

/** Those of a stream after one more event. The same map when it changes none. */
export function foldEventProblems(
  known: EventProblems,
  { nodes, tombstones, problems, ended = [] }: DecodedEvent,
): EventProblems {
  if (known.size === 0 && problems.length === 0) return known;
  const concerns = problems.length > 0 || ended.length > 0;
  if (!concerns && !nodes.some(({ id }) => known.has(id)) && !tombstones.some((id) => known.has(id)))
    return known;
  const next = new Map(known);
  for (const { id } of nodes) next.delete(id);
  for (const id of tombstones) next.delete(id);
  const nameless = next.get("") ?? [];
  if (ended.length > 0)
    next.set(
      "",
      nameless.filter(({ message }) => !ended.includes(message)),
    );
  for (const id of new Set(problems.map(({ nodeId }) => nodeId ?? ""))) {
    const before = id === "" ? (next.get(id) ?? []) : [];
    const more = problems.filter(({ nodeId }) => (nodeId ?? "") === id);
    const byText = new Map(
      [...before, ...more].map((problem) => [`${problem.kind} ${problem.message}`, problem]),
    );
    next.set(id, [...byText.values()].slice(0, maxEventProblems));
  }
  return next;
}

/**
 * What is wrong with the mesh, without what only follows from the status of a node that could not be decoded: that the
 * node has no address.
 */
export function withoutConsequences(ofMesh: readonly Problem[], known: EventProblems): readonly Problem[] {
  const isStatusBroken = (nodeId: NodeId): boolean =>
    known.get(nodeId)?.some(({ kind }) => kind === "address-invalid") === true;
  return ofMesh.filter(
    ({ kind, nodeId }) => kind !== "address-missing" || nodeId === undefined || !isStatusBroken(nodeId),
  );
}
