/**
 * The cluster as this Curator knows it: members, keys that were used, removed nodes.
 *
 * Requests that arrive together are judged one after the other, each seeing the ones before, and stored by one
 * commit: a sync of the disk serves them all. Only after that commit does a watcher see a change or a caller its
 * OK. When the commit fails everything is as it was, and every caller of it is told UNAVAILABLE. A store that was
 * taken away gets everything again.
 */
import type { PublicKey } from "../core/key.ts";
import type { NodeId } from "../core/node.ts";
import { parsePrefix, type Prefix } from "../core/prefix.ts";
import { describeInLine, SettingsError } from "../errors.ts";
import type { NodeClusterNetworking } from "../gen/common.ts";
import type { UpdateNodeStatusRequest } from "../gen/curator.ts";
import type { Logger } from "../log.ts";
import { defaultCuratorDirectory } from "../checks.ts";
import { judgeAnnouncement, judgeStatus, type AdmissionRules, type Standing } from "./admission.ts";
import { CallerLog } from "./caller-log.ts";
import { FanOut } from "./fan-out.ts";
import { PrefixIndex } from "../core/prefix-index.ts";
import { nodeCommandOf } from "../node-command.ts";
import { removedRefusal, unavailable, type Refusal } from "./refusal.ts";
import { encodeStatus } from "./status-bytes.ts";
import type { Kept, NodeStore, StoredChange, StoredNode, StoredState } from "./store.ts";

export interface RegistrySettings {
  readonly store: NodeStore;
  readonly clusterNets: readonly Prefix[];
  readonly log: Logger;
  /** Time of day, which goes into every status. */
  readonly now: () => number;
  /** Of the commands that refusals name. Default: where every Curator is that was not told otherwise. */
  readonly dataDirectory?: string;
}

/** What removing or allowing came to. */
export type MembershipChange = "done" | "was-so" | "unknown-node" | Refusal;

/** What is asked of the registry, waiting for its turn. */
interface Errand<Answer> {
  readonly judge: (turn: Turn) => Answer;
  readonly settle: (answer: Answer | Refusal) => void;
}

/** What one round of errands wants to change. */
interface Turn {
  readonly changes: StoredChange[];
  /** In reverse order they bring the state back. */
  readonly undo: (() => void)[];
  /** Done once the changes are durable. */
  readonly effects: (() => void)[];
}

/** Canonical prefixes of a node, before and after. */
interface Move {
  readonly from: readonly string[];
  readonly to: readonly string[];
}

/**
 * So many keys that a node no longer uses are kept from others; then the oldest is forgotten. Refusing instead would
 * end, one day, a rotation that has gone well for years; without a limit one node could fill memory and disk. Whoever
 * flushes its keys by changing them all the time gives away its own old ones and nobody else's.
 */
export const maxFormerKeys = 64;

export class Registry {
  /** Whoever watches is served from here. */
  readonly fanOut: FanOut;
  /** What callers do and are refused for. */
  readonly callerLog: CallerLog;
  readonly #settings: RegistrySettings;
  readonly #nodes = new Map<NodeId, StoredNode>();
  readonly #keys: Map<string, NodeId>;
  /** The same by node, the oldest first. */
  readonly #keysOf = new Map<NodeId, Set<string>>();
  readonly #removed: Set<NodeId>;
  readonly #allowed: Set<NodeId>;
  readonly #index = new PrefixIndex();
  readonly #rules: AdmissionRules;
  #errands: Errand<never>[] = [];
  /** Why the store could not keep, as it was logged; undefined while it can. */
  /** Of the last try, and whether it was to store a change: then only a change that is stored ends it. */
  #storeFailure: { readonly message: string; readonly isOfChange: boolean } | undefined;

  /** Throws SettingsError when the store cannot be read. */
  constructor(settings: RegistrySettings) {
    this.#settings = settings;
    this.callerLog = new CallerLog(settings.log);
    const { nodes, keys, removed, allowed } = settings.store.load();
    this.#keys = new Map(keys);
    for (const [publicKey, id] of keys)
      this.#keysOf.set(id, (this.#keysOf.get(id) ?? new Set()).add(publicKey));
    this.#removed = new Set(removed);
    this.#allowed = new Set(allowed);
    for (const node of nodes) {
      this.#nodes.set(node.id, node);
      for (const prefix of parseStored(node)) this.#index.add({ owner: node.id, prefix });
    }
    this.fanOut = new FanOut(nodes);
    this.#rules = {
      clusterNets: settings.clusterNets,
      standingOf: (id) => this.standingOf(id),
      keyOwner: (publicKey) => this.#keys.get(publicKey),
      findOther: (id, prefix) => this.#index.findOther(id, prefix),
      nodeCommand: nodeCommandOf(settings.dataDirectory ?? defaultCuratorDirectory),
    };
  }

  /** What a node is told that was removed. */
  removedRefusal(id: NodeId): Refusal {
    return removedRefusal(id, this.#rules.nodeCommand);
  }

  standingOf(id: NodeId): Standing {
    const node = this.#nodes.get(id);
    if (node !== undefined) return { kind: "member", externalAddress: node.externalAddress };
    return { kind: this.#removed.has(id) ? "removed" : "stranger" };
  }

  /** Members by ID. */
  get nodes(): readonly StoredNode[] {
    return [...this.#nodes.values()].toSorted((a, b) => compareTexts(a.id, b.id));
  }

  get removed(): readonly NodeId[] {
    return [...this.#removed].toSorted(compareTexts);
  }

  /** Let in again, and not heard of since. */
  get allowed(): readonly NodeId[] {
    return [...this.#allowed].toSorted(compareTexts);
  }

  /** UpdateNodeStatus. Always an event, since the time in it is new. */
  reportStatus(caller: NodeId, request: UpdateNodeStatusRequest): Promise<Refusal | undefined> {
    return this.#enqueue<undefined>((turn) => {
      const admitted = judgeStatus(caller, request, this.#rules);
      if ("code" in admitted) return admitted;
      const reportedAtMs = this.#settings.now();
      const before = this.#nodes.get(caller);
      const { externalAddress } = admitted;
      this.#put(turn, {
        ...(before ?? { id: caller, publicKey: "", prefixes: [] }),
        externalAddress,
        reportedAtMs,
        status: encodeStatus(admitted.timeless, reportedAtMs),
      });
      turn.effects.push(() => {
        if (before === undefined) this.callerLog.info(caller, "Node joined", { externalAddress });
        else if (before.externalAddress !== externalAddress) {
          this.callerLog.info(caller, "External address changed", {
            externalAddress,
            before: before.externalAddress,
          });
        }
      });
      return undefined;
    });
  }

  /** UpdateNodeClusterNetworking. No event when it changes nothing. */
  announce(caller: NodeId, announced: NodeClusterNetworking | undefined): Promise<Refusal | undefined> {
    return this.#enqueue<undefined>((turn) => {
      const admitted = judgeAnnouncement(caller, announced, this.#rules);
      if ("code" in admitted) return admitted;
      const before = this.#nodes.get(caller);
      if (before === undefined) throw new Error(`node "${caller}" was admitted and is no member`);
      const { publicKey } = admitted;
      const prefixes = admitted.prefixes.map(({ text }) => text);
      if (before.publicKey === publicKey && sameTexts(before.prefixes, prefixes)) return undefined;
      if (before.publicKey !== publicKey) this.#useKey(turn, publicKey, caller);
      this.#move(turn, caller, { from: before.prefixes, to: prefixes });
      this.#put(turn, { ...before, publicKey, prefixes });
      turn.effects.push(() => this.#logAnnouncement(before, { publicKey, prefixes }));
      return undefined;
    });
  }

  /** Takes a node out. Its keys stay taken, its prefixes are free. */
  remove(id: NodeId): Promise<MembershipChange> {
    return this.#enqueue<Exclude<MembershipChange, Refusal>>((turn) => {
      if (this.#removed.has(id)) return "was-so";
      const before = this.#nodes.get(id);
      if (before === undefined && !this.#allowed.has(id)) return "unknown-node";
      this.#nodes.delete(id);
      this.#removed.add(id);
      turn.undo.push(() => {
        if (before !== undefined) this.#nodes.set(id, before);
        this.#removed.delete(id);
      });
      this.#forgetAllowed(turn, id);
      this.#move(turn, id, { from: before?.prefixes ?? [], to: [] });
      turn.changes.push({ kind: "remove", id });
      turn.effects.push(() => {
        this.#settings.log.info("Node removed", { node: id });
        this.fanOut.retract(id, this.removedRefusal(id));
      });
      return "done";
    });
  }

  /** Lets a removed node in again: it is a stranger then, and a member with its next status. */
  allow(id: NodeId): Promise<MembershipChange> {
    return this.#enqueue<Exclude<MembershipChange, Refusal>>((turn) => {
      if (!this.#removed.delete(id)) {
        return this.#nodes.has(id) || this.#allowed.has(id) ? "was-so" : "unknown-node";
      }
      this.#allowed.add(id);
      turn.undo.push(() => {
        this.#removed.add(id);
        this.#allowed.delete(id);
      });
      turn.changes.push({ kind: "allow", id });
      turn.effects.push(() => this.#settings.log.info("Node allowed again", { node: id }));
      return "done";
    });
  }

  /** Makes sure that everything is still kept. For now and then: a node that changes nothing would not find out. */
  ensureKept(): void {
    this.#keep((store) => store.ensure(() => this.#whole()), { isChange: false });
  }

  #forgetAllowed(turn: Turn, id: NodeId): void {
    if (this.#allowed.delete(id)) turn.undo.push(() => this.#allowed.add(id));
  }

  #put(turn: Turn, node: StoredNode): void {
    const before = this.#nodes.get(node.id);
    this.#forgetAllowed(turn, node.id);
    this.#nodes.set(node.id, node);
    turn.undo.push(() => {
      if (before === undefined) this.#nodes.delete(node.id);
      else this.#nodes.set(node.id, before);
    });
    turn.changes.push({ kind: "put", node });
    turn.effects.push(() => this.fanOut.publish(node));
  }

  #useKey(turn: Turn, publicKey: PublicKey, id: NodeId): void {
    const before = this.#keysOf.get(id) ?? new Set();
    const now = new Set(before);
    // A key that comes back is the newest again: the one in use is never forgotten.
    now.delete(publicKey);
    now.add(publicKey);
    const forgotten = [...now].slice(0, Math.max(0, now.size - 1 - maxFormerKeys));
    const isNew = !this.#keys.has(publicKey);
    this.#keys.set(publicKey, id);
    for (const key of forgotten) {
      now.delete(key);
      this.#keys.delete(key);
    }
    this.#keysOf.set(id, now);
    turn.undo.push(() => {
      this.#keysOf.set(id, before);
      if (isNew) this.#keys.delete(publicKey);
      for (const key of forgotten) this.#keys.set(key, id);
    });
    turn.changes.push({ kind: "use-key", publicKey, id });
    for (const key of forgotten) turn.changes.push({ kind: "forget-key", publicKey: key });
  }

  #move(turn: Turn, owner: NodeId, { from, to }: Move): void {
    const gone = missingIn(from, to).map(parsePrefix);
    const come = missingIn(to, from).map(parsePrefix);
    const hold = (gone: readonly Prefix[], come: readonly Prefix[]): void => {
      for (const prefix of gone) this.#index.delete({ owner, prefix });
      for (const prefix of come) this.#index.add({ owner, prefix });
    };
    hold(gone, come);
    turn.undo.push(() => hold(come, gone));
  }

  #enqueue<Answer>(judge: (turn: Turn) => Answer | Refusal): Promise<Answer | Refusal> {
    return new Promise((settle) => {
      if (this.#errands.length === 0) setImmediate(() => this.#runErrands());
      this.#errands.push({ judge, settle } as Errand<never>);
    });
  }

  #runErrands(): void {
    const errands = this.#errands;
    this.#errands = [];
    const turn: Turn = { changes: [], undo: [], effects: [] };
    const answers = errands.map(({ judge }) => judge(turn));
    const { changes } = turn;
    if (
      changes.length > 0 &&
      !this.#keep((store) => store.commit(changes, () => this.#whole()), { isChange: true })
    ) {
      for (const undo of turn.undo.toReversed()) undo();
      // Refusals too: they may rest on a change that did not come to be.
      const refusal = unavailable("Cannot store the change: try again");
      for (const { settle } of errands) settle(refusal);
      return;
    }
    for (const effect of turn.effects) effect();
    for (const [index, { settle }] of errands.entries()) settle(answers[index] as never);
  }

  /** False, and logged once, when the store could not. */
  #keep(keep: (store: NodeStore) => Kept, { isChange }: { readonly isChange: boolean }): boolean {
    const { store, log } = this.#settings;
    let kept: Kept;
    try {
      kept = keep(store);
    } catch (error) {
      const message = describeInLine(error);
      if (this.#storeFailure?.message !== message) log.error(message);
      this.#storeFailure = { message, isOfChange: isChange };
      return false;
    }
    if (kept === "anew") log.warn("The database was gone: everything was written into a new one");
    // A file in its place has had nothing written to it: on a full disk too.
    const hasWritten = isChange || kept === "anew";
    if (this.#storeFailure === undefined || (this.#storeFailure.isOfChange && !hasWritten)) return true;
    log.info("Changes can be stored again");
    this.#storeFailure = undefined;
    return true;
  }

  #whole(): StoredState {
    // Not `#keys`, whose order a change that was taken back may have mixed up.
    const keys = new Map<string, NodeId>();
    for (const [id, ofNode] of this.#keysOf) for (const publicKey of ofNode) keys.set(publicKey, id);
    return { nodes: [...this.#nodes.values()], keys, removed: this.#removed, allowed: this.#allowed };
  }

  #logAnnouncement(before: StoredNode, now: Pick<StoredNode, "publicKey" | "prefixes">): void {
    const fields = { publicKey: now.publicKey, prefixes: now.prefixes.length };
    if (before.publicKey === "") this.callerLog.info(before.id, "Node announced itself", fields);
    else if (before.publicKey === now.publicKey) this.callerLog.info(before.id, "Prefixes changed", fields);
    else this.callerLog.info(before.id, "Public key changed", { ...fields, before: before.publicKey });
  }
}

function parseStored(node: StoredNode): readonly Prefix[] {
  try {
    return node.prefixes.map(parsePrefix);
  } catch (error) {
    throw new SettingsError(`Cannot use stored node "${node.id}"`, { cause: error });
  }
}

/** Texts of `all` that `others` has not; an announcement mostly repeats the one before. */
function missingIn(all: readonly string[], others: readonly string[]): readonly string[] {
  return [...new Set(all).difference(new Set(others))];
}

function sameTexts(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, index) => text === b[index]);
}

function compareTexts(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
