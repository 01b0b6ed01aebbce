/**
 * What differs between two meshes, peer by peer: what the log tells of a change, and what the host has to be asked for.
 *
 * Meshes made one of the other share the peers that did not change, so nearly all of the work is to see that two
 * objects are the same.
 */
import { differingRange, samePeer, type Mesh, type Peer } from "./mesh.ts";

export type MeshChange =
  | { readonly kind: "added" | "removed"; readonly peer: Peer }
  | { readonly kind: "changed"; readonly peer: Peer; readonly before: Peer };

/** The changes from one mesh to the next, sorted by node ID. Empty when they are equal. */
export function diffMeshes(before: Mesh, after: Mesh): readonly MeshChange[] {
  const changes: MeshChange[] = [];
  const { from, beforeTo, afterTo } = differingRange(before.peers, after.peers);
  let at = from;
  for (const peer of after.peers.slice(from, afterTo)) {
    let old = at < beforeTo ? before.peers[at] : undefined;
    while (old !== undefined && old !== peer && old.nodeId < peer.nodeId) {
      changes.push({ kind: "removed", peer: old });
      old = ++at < beforeTo ? before.peers[at] : undefined;
    }
    if (old?.nodeId !== peer.nodeId) {
      changes.push({ kind: "added", peer });
      continue;
    }
    at++;
    if (!samePeer(old, peer)) changes.push({ kind: "changed", peer, before: old });
  }
  for (const peer of before.peers.slice(at, beforeTo)) changes.push({ kind: "removed", peer });
  return changes;
}
