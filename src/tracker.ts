/**
 * What pull knows, without its effects: which nodes there are, which mesh they make, and whether peers that are
 * not in it may be removed.
 *
 * Fed with the events of the streams; asked for the mesh whenever the host is to be compared. A stream that is to
 * replace a running one is kept aside, event by event, until its picture is full: the running one goes on deciding
 * until then, and the two are never mixed.
 */
import { judgeNode, type ClaimRules } from "./core/claim.ts";
import { MemberBook, type LearnedCurator } from "./core/curators.ts";
import type { PublicKey } from "./core/key.ts";
import { LiveMesh } from "./core/live-mesh.ts";
import { findPeer, type Mesh } from "./core/mesh.ts";
import {
  findNode,
  foldBelieved,
  foldEvent,
  foldStreamOpened,
  initialNodeSet,
  knownNodes,
  selfNode,
  type FoldContext,
  type NodeSet,
  type Picture,
} from "./core/node-set.ts";
import type { Node, NodeId } from "./core/node.ts";
import type { Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { RepeatCounter, repeatedNodes } from "./core/repeats.ts";
import type { DecodedEvent } from "./curator/connection.ts";
import type { StreamEvent } from "./curator/follower.ts";
import { foldEventProblems, withoutConsequences, type EventProblems } from "./event-problems.ts";

/** A Curator that sends no LAST_BACKLOGGED is taken to have said all this long after its first event (C5). */
export const settleMs = 10_000;
/** A node that has just been made is not in the first picture: it is reported only when it stays out that long. */
export const absentMs = 10_000;
/** So many events wait to be folded together. */
const maxWaiting = 1_000;

export interface TrackerSettings {
  readonly self: NodeId;
  /** Nodes of the last file. */
  readonly fromFile: readonly Node[];
  /**
   * The interface has no peer that the file does not name, so what is not wanted may go. False when the file was lost,
   * damaged or could not be written before a restart: then nothing goes before a believed picture.
   */
  readonly complete: boolean;
}

export interface BuildRules extends ClaimRules {
  readonly ownPrefixes: readonly Prefix[];
}

export interface TrackedMesh {
  readonly mesh: Mesh;
  readonly problems: readonly Problem[];
  /** Peers of the interface that are not in the mesh may be removed. */
  readonly exact: boolean;
}

export class Tracker {
  /** Without the events that wait. Their stream and its picture are what they will be then. */
  #folded: NodeSet;
  /** Events of a picture that is believed: a burst of them is folded at once. */
  #waiting: DecodedEvent[] = [];
  #replacement:
    | { readonly stream: number; readonly openedMs: number; readonly events: DecodedEvent[] }
    | undefined;
  /** When the stream that decides was opened. */
  #openedMs = 0;
  readonly #repeats = new RepeatCounter();
  #complete: boolean;
  #believed = false;
  #firstEventMs: number | undefined;
  #settled = false;
  /** Since when the picture of the stream is full. */
  #fullMs: number | undefined;
  #absenceReported = false;
  #eventProblems: EventProblems = new Map();
  #selfStatus: Uint8Array | undefined;

  readonly #live: LiveMesh;
  /** Nodes that are other objects than those that were judged, or gone. */
  readonly #touched = new Set<NodeId>();
  #judgedBy: ClaimRules | undefined;
  #lastProblems:
    | {
        readonly ofMesh: readonly Problem[];
        readonly ofEvents: EventProblems;
        readonly said: string;
        readonly all: readonly Problem[];
      }
    | undefined;
  /** Of the mesh as last built; before the first, those of the file, which a Curator may be faster than. */
  #peers: FoldContext["peers"];
  readonly #members = new MemberBook();
  #built: { readonly nodes: NodeSet; readonly rules: BuildRules; readonly mesh: TrackedMesh } | undefined;

  constructor(settings: TrackerSettings) {
    this.#folded = initialNodeSet(settings.self, settings.fromFile);
    this.#peers = this.#folded.carried;
    this.#complete = settings.complete;
    // What the file holds was settled when it was written: everybody in it keeps what is his. (Its keys were
    // parsed when it was read.)
    this.#live = new LiveMesh(settings.self, () => ({
      prefixes: new Map(settings.fromFile.flatMap(({ id, prefixes }) => prefixes.map((text) => [text, id]))),
      keys: new Map(settings.fromFile.map(({ id, publicKey }) => [publicKey as PublicKey, id])),
    }));
    for (const { id } of settings.fromFile) this.#touched.add(id);
  }

  /** "none" until a stream was opened. */
  get picture(): Picture | "none" {
    return this.#folded.stream === 0 ? "none" : this.#folded.picture;
  }

  /** Number of the stream that decides; 0 before the first. */
  get stream(): number {
    return this.#folded.stream;
  }

  /** Every node that is known is in the mesh: a full picture came, or a Curator without one has been heard out. */
  get heardOut(): boolean {
    return this.#settled || (this.#folded.stream !== 0 && this.#folded.picture !== "partial");
  }

  /** This node as the current stream shows it. */
  get selfNode(): Node | undefined {
    return selfNode(this.#nodes);
  }

  /** Serialized NodeStatus of this node as last watched. */
  get selfStatus(): Uint8Array | undefined {
    return this.#selfStatus;
  }

  /** A picture has been believed since the start. */
  get believed(): boolean {
    return this.#believed;
  }

  /** Curators of the cluster, by the last picture that named any and lacked nobody; empty before. */
  curators(clusterNets: readonly Prefix[]): readonly LearnedCurator[] {
    const { picture } = this;
    const isWhole = picture === "believed" || (picture === "partial" && this.#settled);
    return isWhole ? this.#members.learn(clusterNets) : this.#members.learned;
  }

  /** When `settle` must be called, by the clock that `fold` is given; undefined: not needed. */
  get settleAtMs(): number | undefined {
    if (this.#firstEventMs !== undefined && !this.heardOut) return this.#firstEventMs + settleMs;
    if (this.picture !== "without-self" || this.#absenceReported) return undefined;
    return (this.#fullMs ?? 0) + absentMs;
  }

  /** The full picture of the stream is added to and not removed by (C4.8). */
  get isHeld(): boolean {
    return this.picture === "without-self" || this.picture === "shrunk";
  }

  /** The first picture that is held, if one is (C4.8). */
  get heldSinceMs(): number | undefined {
    return this.#folded.picture === "shrunk" ? this.#folded.hold?.sinceMs : undefined;
  }

  /** True: nodes come again with nothing changed, so that tombstones may have been lost before (C2). */
  fold(event: StreamEvent, nowMs: number): boolean {
    switch (event.kind) {
      case "opened":
        if (event.replaces !== undefined && event.replaces === this.#folded.stream) {
          this.#replacement = { stream: event.stream, openedMs: nowMs, events: [] };
        } else {
          this.#open(event.stream, nowMs);
        }
        return false;
      case "event":
        if (event.stream === this.#folded.stream) {
          const isSuspicious = this.#isRepeated(event.event, nowMs);
          this.#take(event.event, nowMs);
          return isSuspicious;
        }
        if (event.stream === this.#replacement?.stream) {
          this.#replacement.events.push(event.event);
          if (event.event.lastBacklogged) this.#replace(nowMs);
        }
        return false;
      case "closed":
        if (event.stream === this.#replacement?.stream) this.#replacement = undefined;
        // What the replacement has brought so far is the best there is now.
        else if (event.stream === this.#folded.stream && this.#replacement !== undefined)
          this.#replace(nowMs);
        return false;
    }
  }

  /** Of a burst that is not folded yet the nodes are compared with those of before it, which is near enough. */
  #isRepeated(event: DecodedEvent, nowMs: number): boolean {
    const { current } = this.#folded;
    const counted = { known: current.size, nowMs, streamOpenedMs: this.#openedMs };
    let isSuspicious = false;
    for (const nodeId of repeatedNodes({ current }, event)) {
      if (this.#repeats.isSuspicious({ nodeId, ...counted })) isSuspicious = true;
    }
    return isSuspicious;
  }

  /**
   * Tells that it is `nowMs`: at `settleAtMs` a Curator that sends no LAST_BACKLOGGED has been heard out, and a picture
   * without this node is worth a report.
   */
  settle(nowMs: number): void {
    if (this.settleAtMs === undefined || nowMs < this.settleAtMs) return;
    if (this.heardOut) this.#absenceReported = true;
    else this.#settled = true;
    this.#built = undefined;
  }

  /** The mesh by all that is known. The same object as before when nothing changed. */
  build(rules: BuildRules): TrackedMesh {
    const built = this.#make(rules);
    // While a backlog is coming the holders of before it count, so that its order decides nothing (C4.5).
    if (this.heardOut) this.#live.hold();
    this.#peers = peersOf(built.mesh);
    return built;
  }

  /**
   * The mesh as `build` would give it now, without giving anybody anything: who comes later in the same burst has the same
   * chance. Done while more is on its way, it leaves `build` the less to do.
   */
  prepare(rules: BuildRules): TrackedMesh {
    return this.#make(rules);
  }

  #make(rules: BuildRules): TrackedMesh {
    if (this.#built?.nodes === this.#nodes && this.#built.rules === rules) return this.#built.mesh;
    this.#judge(rules);
    this.#live.setOwnPrefixes(rules.ownPrefixes);
    const { mesh, problems } = this.#live.settle();
    const built = { mesh, problems: this.#allProblems(problems), exact: this.#complete };
    this.#built = { nodes: this.#nodes, rules, mesh: built };
    return built;
  }

  /** With what else is wrong; the same array as before while all of it is the same. */
  #allProblems(ofMesh: readonly Problem[]): readonly Problem[] {
    const ofEvents = this.#eventProblems;
    const ofPicture = this.#pictureProblems();
    const said = ofPicture.map(({ message }) => message).join(" ");
    const last = this.#lastProblems;
    if (last?.ofMesh === ofMesh && last.ofEvents === ofEvents && last.said === said) return last.all;
    const others = [...[...ofEvents.values()].flat(), ...ofPicture];
    const all = others.length === 0 ? ofMesh : [...withoutConsequences(ofMesh, ofEvents), ...others];
    this.#lastProblems = { ofMesh, ofEvents, said, all };
    return all;
  }

  /** Judges every node that may be otherwise than it was; all of them when the rules are. */
  #judge(rules: BuildRules): void {
    const { clusterNets, ownPublicKey, hostAddresses } = rules;
    const isByRules =
      this.#judgedBy?.clusterNets === clusterNets &&
      this.#judgedBy.ownPublicKey === ownPublicKey &&
      this.#judgedBy.hostAddresses === hostAddresses;
    this.#judgedBy = rules;
    if (!isByRules) {
      for (const { id } of knownNodes(this.#nodes)) this.#touched.add(id);
    }
    for (const id of this.#touched) {
      const node = id === this.#nodes.self ? undefined : findNode(this.#nodes, id);
      if (node === undefined) this.#live.delete(id);
      else this.#live.set(judgeNode(node, rules, isByRules ? this.#live.claimOf(id) : undefined));
    }
    this.#touched.clear();
  }

  #open(stream: number, openedMs: number): void {
    this.#openedMs = openedMs;
    this.#folded = foldStreamOpened(this.#nodes, stream);
    this.#members.clear();
    this.#replacement = undefined;
    this.#firstEventMs = undefined;
    this.#settled = false;
    this.#fullMs = undefined;
    this.#absenceReported = false;
    this.#eventProblems = new Map();
  }

  #replace(nowMs: number): void {
    const { stream, openedMs, events } = this.#replacement ?? { stream: 0, openedMs: nowMs, events: [] };
    this.#open(stream, openedMs);
    for (const event of events) this.#take(event, nowMs);
  }

  #take(event: DecodedEvent, nowMs: number): void {
    this.#firstEventMs ??= nowMs;
    this.#selfStatus = event.selfStatus ?? this.#selfStatus;
    const eventProblems = foldEventProblems(this.#eventProblems, event);
    if (eventProblems !== this.#eventProblems) this.#built = undefined;
    this.#eventProblems = eventProblems;
    for (const node of event.nodes) this.#members.note(node.id, node);
    for (const id of event.tombstones) this.#members.note(id, undefined);
    if (this.#folded.picture === "believed") {
      this.#waiting.push(event);
      // However long nobody asks, they must not cost more than what they say.
      if (this.#waiting.length >= maxWaiting) this.#foldWaiting();
      return;
    }
    const before = this.#folded;
    this.#folded = foldEvent(before, event, { nowMs, peers: this.#peers });
    this.#noteTouched(before, [event]);
    // A picture that is believed lets go of all that it lacks.
    const { current, carried } = this.#folded;
    if (carried.size === 0) {
      for (const id of before.carried.keys()) if (!current.has(id)) this.#touched.add(id);
    }
    if (this.#folded.picture === "partial") return;
    this.#fullMs ??= nowMs;
    if (this.#folded.picture === "believed") {
      this.#complete = true;
      this.#believed = true;
    }
  }

  /** All nodes that are known. */
  get #nodes(): NodeSet {
    this.#foldWaiting();
    return this.#folded;
  }

  #foldWaiting(): void {
    if (this.#waiting.length === 0) return;
    const before = this.#folded;
    this.#folded = foldBelieved(before, this.#waiting);
    this.#noteTouched(before, this.#waiting);
    this.#waiting = [];
  }

  #noteTouched(before: NodeSet, events: readonly DecodedEvent[]): void {
    const { current } = this.#folded;
    for (const { nodes, tombstones } of events) {
      for (const { id } of nodes) if (findNode(before, id) !== current.get(id)) this.#touched.add(id);
      for (const id of tombstones) this.#touched.add(id);
    }
  }

  #pictureProblems(): readonly Problem[] {
    switch (this.picture) {
      case "without-self":
        if (!this.#absenceReported && this.#nodes.carried.size === 0) return [];
        return [
          {
            kind: "picture-without-self",
            message:
              "The Curator's picture does not contain this node: no peer is removed by it until it does",
          },
        ];
      case "shrunk":
        return [
          {
            kind: "picture-shrunk",
            message: `The Curator's picture lacks more than half of the peers (${this.#nodes.carried.size} known nodes are not in it): they are kept until another stream, at least five minutes later, says the same`,
          },
        ];
      case "none":
      case "partial":
      case "believed":
        return [];
    }
  }
}

/** The nodes that are peers in the mesh. */
function peersOf(mesh: Mesh): FoldContext["peers"] {
  return { size: mesh.peers.length, has: (nodeId) => findPeer(mesh, nodeId) !== undefined };
}
