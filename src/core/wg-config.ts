/**
 * The mesh as the text that `wg setconf` reads, and back.
 *
 * Canonical: the same mesh gives the same bytes whatever order the peers came in, so "did anything change?" is a
 * comparison of strings. The text is also the last known good mesh, read again at the next start.
 */
import type { PrivateKey } from "./key.ts";
import type { Mesh } from "./mesh.ts";
import type { Node } from "./node.ts";

export interface WgConfig {
  readonly listenPort: number;
  readonly mesh: Mesh;
  /** PersistentKeepalive of every peer. */
  readonly keepaliveSeconds?: number;
}

/** The whole file. `privateKey` undefined prints "(hidden)" in its place, for --dry-run. */
export function renderWgConfig(_config: WgConfig, _privateKey: PrivateKey | undefined): string {
  throw new Error("unwritten");
}

/**
 * Reads a file that `renderWgConfig` wrote. The peers come back as nodes (endpoint as external address), to be
 * judged like any other. Throws ClusternetError naming the line number but never its text, when the file is not one of ours: a line that
 * is not understood, a peer without its `# node =` line, a key twice.
 */
export function parseWgConfig(_text: string): {
  readonly privateKey: PrivateKey;
  readonly listenPort: number;
  readonly nodes: readonly Node[];
} {
  throw new Error("unwritten");
}
