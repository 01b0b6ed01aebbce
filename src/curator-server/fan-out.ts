/**
 * Brings every change of a node to every watcher.
 *
 * A node is encoded once for a change, and these bytes are shared: every watcher's event, and a part of every later
 * first picture, since messages of protobuf one behind the other are read as one message. What a watcher has not taken yet is merged per node, so one
 * that stops reading costs at most one event a node, and gets the last state of each when it reads again; nodes
 * keep their turn in that queue, so one that changes all the time cannot be overtaken for ever. A first picture is
 * cut into events after passing 2 MiB, as the real Curator does, and the last of them carries LAST_BACKLOGGED.
 */
import { Node, WatchEvent, WatchEvent_Progress } from "../gen/curator.ts";
import { NodeState } from "../gen/common.ts";
import type { NodeId } from "../core/node.ts";
import { unavailable, type Refusal } from "./refusal.ts";
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
  /** Every node as an event of its own. */
  readonly #events = new Map<NodeId, Uint8Array>();
  readonly #watchers = new Set<OpenWatcher>();
  /** How many of them each caller has; none is left out. */
  readonly #countOf = new Map<NodeId, number>();
  /** The first picture as events, for all who ask before the next change. */
  #backlog: readonly Uint8Array[] | undefined;
  #closed = false;

  /** `nodes`: what is known at start. */
  constructor(nodes: Iterable<StoredNode>) {
    for (const node of nodes) this.#events.set(node.id, encodeNode(node));
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
    const event = encodeNode(node);
    this.#events.set(node.id, event);
    this.#send(node.id, event);
  }

  /** A node that is no more: a tombstone for everybody, and `refusal` as the end of its own streams. */
  retract(id: NodeId, refusal: Refusal): void {
    this.#events.delete(id);
    this.#send(id, encodeEvent({ nodeTombstones: [{ nodeId: id }] }));
    for (const watcher of this.#watchers) if (watcher.caller === id) watcher.end(refusal);
  }

  /** Ends every stream, UNAVAILABLE, so that agents look for another Curator at once. */
  stop(): void {
    this.#closed = true;
    for (const watcher of this.#watchers) watcher.end(stopping);
  }

  #send(id: NodeId, event: Uint8Array): void {
    this.#backlog = undefined;
    for (const watcher of this.#watchers) {
      if (watcher.only === undefined || watcher.only === id) watcher.offer(id, event);
    }
  }

  #firstEvents(only: NodeId | undefined): readonly Uint8Array[] {
    if (only === undefined) return (this.#backlog ??= encodeBacklog(this.#events.values()));
    const event = this.#events.get(only);
    // As the real one: of a node that is not there nothing comes, until it is; and never LAST_BACKLOGGED.
    return event === undefined ? [] : [event];
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
  /** What the last wait was given. */
  #signal: AbortSignal | undefined;

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
    // Once, not at each wait: taking the listener on and off would be an eighth of what a change costs.
    if (this.#signal !== signal) {
      this.#signal = signal;
      signal.addEventListener("abort", () => this.#wake?.(), { once: true });
    }
    return new Promise((resolve) => {
      if (signal.aborted || this.#end !== undefined || this.waiting > 0) return resolve();
      this.#wake = () => {
        this.#wake = undefined;
        resolve();
      };
    });
  }
}

/** The node as every watcher gets it. This Curator is no node of the cluster, and none of its nodes has a role. */
function encodeNode(node: StoredNode): Uint8Array {
  const bytes = Node.encode({
    id: node.id,
    roles: undefined,
    status: node.status,
    clusternet:
      node.publicKey === ""
        ? undefined
        : { wireguardPubkey: node.publicKey, prefixes: node.prefixes.map((cidr) => ({ cidr })) },
    state: NodeState.UP,
  }).finish();
  return encodeEvent({ nodes: [bytes] });
}

function encodeEvent(event: Partial<WatchEvent>): Uint8Array {
  return WatchEvent.encode(WatchEvent.fromPartial(event)).finish();
}

const lastBacklogged = encodeEvent({ progress: WatchEvent_Progress.LAST_BACKLOGGED });

function encodeBacklog(nodes: Iterable<Uint8Array>): readonly Uint8Array[] {
  const events: Uint8Array[] = [];
  let batch: Uint8Array[] = [];
  let bytes = 0;
  for (const node of nodes) {
    // Here and not right after the node that passed the mark: so the last event, which carries the mark, is never
    // another one than the last batch.
    if (bytes > backlogEventBytes) {
      events.push(Buffer.concat(batch));
      batch = [];
      bytes = 0;
    }
    batch.push(node);
    bytes += node.length;
  }
  events.push(Buffer.concat([...batch, lastBacklogged]));
  return events;
}
