/**
 * What a Curator must still know after a restart, and the store for tests that forgets it with the process.
 *
 * A store only keeps; who may write what is decided before (registry.ts). `commit` is all or nothing, and what it
 * returned from is durable: the caller is answered OK right after it. What it keeps can be taken away under it, so
 * it is given the whole state along with a change.
 */
import type { NodeId } from "../core/node.ts";

/** A member of the cluster: a node that has reported its status. */
export interface StoredNode {
  readonly id: NodeId;
  /** Canonical text. */
  readonly externalAddress: string;
  /** When the status came, by this Curator's clock. */
  readonly reportedAtMs: number;
  /** Serialized NodeStatus with that time in it; the rest as reported, fields that nobody here knows too. */
  readonly status: Uint8Array;
  /** "" before the first announcement. */
  readonly publicKey: string;
  /** Canonical texts in the order of the announcement, duplicates too. */
  readonly prefixes: readonly string[];
}

export interface StoredState {
  readonly nodes: readonly StoredNode[];
  /**
   * Keys that were announced, with their nodes, of each node the oldest first. A key is never another node's, removed
   * or not, as long as it is in here.
   */
  readonly keys: ReadonlyMap<string, NodeId>;
  readonly removed: ReadonlySet<NodeId>;
  /** Removed once and let in again, and no members yet. */
  readonly allowed: ReadonlySet<NodeId>;
}

export type StoredChange =
  /** A member from here on. */
  | { readonly kind: "put"; readonly node: StoredNode }
  /** From here on the node's newest key, whether it had it before or not. */
  | { readonly kind: "use-key"; readonly publicKey: string; readonly id: NodeId }
  | { readonly kind: "forget-key"; readonly publicKey: string }
  /** Out of the members and never in again before it is allowed. */
  | { readonly kind: "remove"; readonly id: NodeId }
  /** A stranger that may become a member again. */
  | { readonly kind: "allow"; readonly id: NodeId };

/** How a state came to be kept: what was there went on being used, or was gone and everything was written anew. */
export type Kept = "in-place" | "anew";

export interface NodeStore {
  /** Throws SettingsError when what is kept cannot be read. */
  load(): StoredState;
  /** Keeps all of the changes, in order, or none of them. `whole` gives the state with them. Throws when it cannot. */
  commit(changes: readonly StoredChange[], whole: () => StoredState): Kept;
  /** Keeps the whole state anew when what was kept is gone. Throws when it cannot. */
  ensure(whole: () => StoredState): Kept;
  close(): void;
}

/** A store that lives as long as the process. */
export class MemoryStore implements NodeStore {
  readonly #nodes = new Map<NodeId, StoredNode>();
  readonly #keys = new Map<string, NodeId>();
  readonly #removed = new Set<NodeId>();
  readonly #allowed = new Set<NodeId>();

  load(): StoredState {
    return {
      nodes: [...this.#nodes.values()],
      keys: new Map(this.#keys),
      removed: new Set(this.#removed),
      allowed: new Set(this.#allowed),
    };
  }

  commit(changes: readonly StoredChange[]): Kept {
    for (const change of changes) {
      switch (change.kind) {
        case "put":
          this.#nodes.set(change.node.id, change.node);
          this.#allowed.delete(change.node.id);
          break;
        case "use-key":
          this.#keys.delete(change.publicKey);
          this.#keys.set(change.publicKey, change.id);
          break;
        case "forget-key":
          this.#keys.delete(change.publicKey);
          break;
        case "remove":
          this.#nodes.delete(change.id);
          this.#removed.add(change.id);
          this.#allowed.delete(change.id);
          break;
        case "allow":
          this.#removed.delete(change.id);
          this.#allowed.add(change.id);
          break;
      }
    }
    return "in-place";
  }

  ensure(): Kept {
    return "in-place";
  }

  close(): void {}
}
