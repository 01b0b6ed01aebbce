/**
 * What differs between two meshes, peer by peer: what the log tells of a change.
 */
import type { Mesh, Peer } from "./mesh.ts";

export type MeshChange =
  | { readonly kind: "added" | "removed"; readonly peer: Peer }
  | { readonly kind: "changed"; readonly peer: Peer; readonly before: Peer };

/** The changes from one mesh to the next, sorted by node ID. Empty when they are equal. */
export function diffMeshes(before: Mesh, after: Mesh): readonly MeshChange[] {
  if (before === after) return [];
  const known = new Map(before.peers.map((peer) => [peer.nodeId, peer]));
  const changes: MeshChange[] = [];
  for (const peer of after.peers) {
    const old = known.get(peer.nodeId);
    known.delete(peer.nodeId);
    if (old === undefined) changes.push({ kind: "added", peer });
    else if (!samePeer(old, peer)) changes.push({ kind: "changed", peer, before: old });
  }
  for (const peer of known.values()) changes.push({ kind: "removed", peer });
  return changes.toSorted((a, b) => (a.peer.nodeId < b.peer.nodeId ? -1 : 1));
}

function samePeer(a: Peer, b: Peer): boolean {
  return (
    a === b ||
    (a.publicKey === b.publicKey &&
      a.address?.text === b.address?.text &&
      a.prefixes.length === b.prefixes.length &&
      a.prefixes.every((prefix, index) => prefix.text === b.prefixes[index]?.text))
  );
}
