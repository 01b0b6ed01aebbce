/**
 * Brings every change of a node to every watcher.
 *
 * A change is encoded once and its bytes are shared. What a watcher has not taken yet is merged per node, so one
 * that stops reading costs at most one event a node, and gets the last state of each when it reads again; nodes
 * keep their turn in that queue, so one that changes all the time cannot be overtaken for ever. A first picture is
 * cut into events after passing 2 MiB, as the real Curator does, and the last of them carries LAST_BACKLOGGED.
 */
import { Node, WatchEvent, WatchEvent_Progress } from "../gen/curator.ts";
import { NodeState } from "../gen/common.ts";
import type { NodeId } from "../core/node.ts";
import { removedRefusal, unavailable, type Refusal } from "./refusal.ts";
import type { StoredNode } from "./store.ts";

/** An event of a backlog is closed once it has passed this size. */
const backlogEventBytes = 2 * 1024 * 1024;

/** One Watch call. */
export interface Watcher {
  readonly caller: NodeId;
  /** The one node that is watched; undefined for all. */
  readonly only: NodeId | undefined;
  /** The next serialized WatchEvent, a refusal that ends the stream, or undefined: nothing new. */
  next(): Uint8Array | Refusal | undefined;
  /** Resolves when `next` has something, or when `signal` aborts. Never rejects. */
  changed(signal: AbortSignal): Promise<void>;
  /** Events that wait to be taken. */
  readonly waiting: number;
}

export class FanOut {
  readonly #nodes = new Map<NodeId, Uint8Array>();
  readonly #watchers = new Set<OpenWatcher>();
  /** How many of them each caller has; none is left out. */
  readonly #countOf = new Map<NodeId, number>();
  /** The first picture as events, for all who ask before the next change. */
  #backlog: readonly Uint8Array[] | undefined;
  #closed = false;

  /** `nodes`: what is known at start. */
  constructor(nodes: Iterable<StoredNode>) {
    for (const node of nodes) this.#nodes.set(node.id, encodeNode(node));
  }

  /** Watches all nodes, or one. Close it with `close`. */
  open(caller: NodeId, only: NodeId | undefined): Watcher {
    const watcher = new OpenWatcher(caller, only, this.#firstEvents(only));
    if (this.#closed) watcher.end(stopping);
    else {
      this.#watchers.add(watcher);
      this.#countOf.set(caller, this.watchersOf(caller) + 1);
    }
    return watcher;
  }

  close(watcher: Watcher): void {
    if (!(watcher instanceof OpenWatcher) || !this.#watchers.delete(watcher)) return;
    const left = this.watchersOf(watcher.caller) - 1;
    if (left === 0) this.#countOf.delete(watcher.caller);
    else this.#countOf.set(watcher.caller, left);
  }

  /** Open watchers of one caller. */
  watchersOf(caller: NodeId): number {
    return this.#countOf.get(caller) ?? 0;
  }

  get watchers(): number {
    return this.#watchers.size;
  }

  /** A node that is new or has changed. */
  publish(node: StoredNode): void {
    const bytes = encodeNode(node);
    this.#nodes.set(node.id, bytes);
    this.#send(node.id, { nodes: [bytes], progress: WatchEvent_Progress.UNSPECIFIED, nodeTombstones: [] });
  }

  /** A node that is no more: a tombstone for everybody, and the end of its own streams. */
  retract(id: NodeId): void {
    this.#nodes.delete(id);
    const tombstone = { nodeId: id };
    this.#send(id, { nodes: [], progress: WatchEvent_Progress.UNSPECIFIED, nodeTombstones: [tombstone] });
    for (const watcher of this.#watchers) if (watcher.caller === id) watcher.end(removedRefusal(id));
  }

  /** Ends every stream, UNAVAILABLE, so that agents look for another Curator at once. */
  stop(): void {
    this.#closed = true;
    for (const watcher of this.#watchers) watcher.end(stopping);
  }

  #send(id: NodeId, change: WatchEvent): void {
    this.#backlog = undefined;
    const event = WatchEvent.encode(change).finish();
    for (const watcher of this.#watchers) {
      if (watcher.only === undefined || watcher.only === id) watcher.offer(id, event);
    }
  }

  #firstEvents(only: NodeId | undefined): readonly Uint8Array[] {
    if (only === undefined) return (this.#backlog ??= encodeBacklog(this.#nodes.values()));
    const bytes = this.#nodes.get(only);
    // As the real one: of a node that is not there nothing comes, until it is; and never LAST_BACKLOGGED.
    if (bytes === undefined) return [];
    return [encodeNodes([bytes], WatchEvent_Progress.UNSPECIFIED)];
  }
}

const stopping = unavailable("Cannot go on: this Curator is stopping");

class OpenWatcher implements Watcher {
  readonly caller: NodeId;
  readonly only: NodeId | undefined;
  #backlog: readonly Uint8Array[];
  readonly #pending = new Map<NodeId, Uint8Array>();
  #end: Refusal | undefined;
  #wake: (() => void) | undefined;

  constructor(caller: NodeId, only: NodeId | undefined, backlog: readonly Uint8Array[]) {
    this.caller = caller;
    this.only = only;
    this.#backlog = backlog;
  }

  get waiting(): number {
    return this.#backlog.length + this.#pending.size;
  }

  offer(id: NodeId, event: Uint8Array): void {
    this.#pending.set(id, event);
    this.#wake?.();
  }

  end(reason: Refusal): void {
    this.#end ??= reason;
    this.#wake?.();
  }

  next(): Uint8Array | Refusal | undefined {
    if (this.#end !== undefined) return this.#end;
    const [first, ...rest] = this.#backlog;
    if (first !== undefined) {
      this.#backlog = rest;
      return first;
    }
    for (const [id, event] of this.#pending) {
      this.#pending.delete(id);
      return event;
    }
    return undefined;
  }

  changed(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        this.#wake = undefined;
        signal.removeEventListener("abort", wake);
        resolve();
      };
      if (signal.aborted || this.#end !== undefined || this.waiting > 0) return resolve();
      this.#wake = wake;
      signal.addEventListener("abort", wake, { once: true });
    });
  }
}

/** The node as every watcher gets it. This Curator is no node of the cluster, and none of its nodes has a role. */
export function encodeNode(node: StoredNode): Uint8Array {
  return Node.encode({
    id: node.id,
    roles: undefined,
    status: node.status,
    clusternet:
      node.publicKey === ""
        ? undefined
        : { wireguardPubkey: node.publicKey, prefixes: node.prefixes.map((cidr) => ({ cidr })) },
    state: NodeState.UP,
  }).finish();
}

function encodeBacklog(nodes: Iterable<Uint8Array>): readonly Uint8Array[] {
  const events: Uint8Array[] = [];
  let batch: Uint8Array[] = [];
  let bytes = 0;
  for (const node of nodes) {
    // Here and not right after the node that passed the mark: so the last event, which carries the mark, is never
    // another one than the last batch.
    if (bytes > backlogEventBytes) {
      events.push(encodeNodes(batch, WatchEvent_Progress.UNSPECIFIED));
      batch = [];
      bytes = 0;
    }
    batch.push(node);
    bytes += node.length;
  }
  events.push(encodeNodes(batch, WatchEvent_Progress.LAST_BACKLOGGED));
  return events;
}

function encodeNodes(nodes: Uint8Array[], progress: WatchEvent_Progress): Uint8Array {
  return WatchEvent.encode({ nodes, progress, nodeTombstones: [] }).finish();
}
