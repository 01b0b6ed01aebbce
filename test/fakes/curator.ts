/**
 * A Curator that does what a test tells it: a real gRPC server, so the program under test talks to it as to any other.
 *
 *     await using curator = await FakeCurator.start();
 *     curator.backlog(node({ id: "a" }), node({ id: "b", key, address: "192.0.2.2", prefixes: ["10.192.2.0/24"] }));
 *     // … start an agent with --insecure --curator ${curator.address} …
 *     curator.put(node({ id: "b", key: otherKey }));            // live change, also in later backlogs
 *     curator.remove("b");                                      // tombstone
 *     curator.push(event({ nodes: [bytes], progress: 1 }));     // any event, or any bytes at all
 *     curator.refuseAnnouncements({ code: 9, message: "no status" });
 *     curator.endStreams({ code: 14, message: "bye" });
 *     curator.seen().announcements                              // what agents said, and when
 *
 * It knows its callers by the `clusternet-node-id` metadata, or with `tls` by their one certificate, and then refuses
 * others as the real one does. It answers OK to everything until told otherwise, and
 * like the real one shows an announcement or a status report that it took as a change of that node (`reflect`).
 * In a network namespace of its own it runs as a process: see fakes/curator-process.ts.
 */
import type { Server } from "nice-grpc";
import { createServer, Metadata, ServerError, Status } from "nice-grpc";
import type { CallContext } from "nice-grpc-common";
import { aborted } from "../../src/async.ts";
import { byteCuratorDefinition } from "../../src/curator/event-bytes.ts";
import type { Transport } from "../../src/curator-server/server.ts";
import { tlsTransport } from "../../src/curator-server/tls.ts";
import { NodeClusterNetworking, NodeState, NodeStatus } from "../../src/gen/common.ts";
import {
  CuratorLocalDefinition,
  Node,
  type UpdateNodeClusterNetworkingRequest,
  type UpdateNodeStatusRequest,
  WatchEvent,
  WatchEvent_Progress,
  type WatchRequest,
} from "../../src/gen/curator.ts";
import { type Caller, Impostor, type Manner } from "./impostor.ts";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import { readCredentials } from "../../src/trust/credentials.ts";
import { monotonicMs } from "../lab/monotonic.ts";
import { metropolisRefusal } from "./metropolis.ts";

/** What `node` makes a Node of; whatever is left out is not on the wire either. */
export interface FakeNode {
  readonly id: string;
  /** WireGuard public key as it is sent, usable or not. */
  readonly key?: string;
  /** External address as it is sent, usable or not. */
  readonly address?: string;
  readonly prefixes?: readonly string[];
  /** UP when left out. */
  readonly state?: NodeState;
  /** The node says that it runs a Curator on this port. */
  readonly curatorPort?: number;
  /** The cluster says that the node is a consensus member. */
  readonly consensusMember?: boolean;
  /** Time of the status, in seconds; a status without address is sent when this is given. */
  readonly seconds?: bigint | number;
}

/** A serialized Node. */
export function node(fields: FakeNode): Uint8Array {
  const hasStatus =
    fields.address !== undefined || fields.curatorPort !== undefined || fields.seconds !== undefined;
  const hasClusternet = fields.key !== undefined || fields.prefixes !== undefined;
  return Node.encode(
    Node.fromPartial({
      id: fields.id,
      state: fields.state ?? NodeState.UP,
      ...(fields.consensusMember !== undefined && {
        roles: fields.consensusMember ? { consensusMember: {} } : {},
      }),
      ...(hasStatus && {
        status: NodeStatus.encode(
          NodeStatus.fromPartial({
            ...(fields.address !== undefined && { externalAddress: fields.address }),
            ...(fields.curatorPort !== undefined && { runningCurator: { port: fields.curatorPort } }),
            ...(fields.seconds !== undefined && { timestamp: { seconds: BigInt(fields.seconds), nanos: 0 } }),
          }),
        ).finish(),
      }),
      ...(hasClusternet && {
        clusternet: {
          wireguardPubkey: fields.key ?? "",
          prefixes: (fields.prefixes ?? []).map((cidr) => ({ cidr })),
        },
      }),
    }),
  ).finish();
}

/** A serialized WatchEvent; `last` gives it LAST_BACKLOGGED. */
export function event(fields: {
  readonly nodes?: readonly Uint8Array[];
  readonly tombstones?: readonly string[];
  readonly last?: boolean;
}): Uint8Array {
  return WatchEvent.encode({
    nodes: [...(fields.nodes ?? [])],
    nodeTombstones: (fields.tombstones ?? []).map((nodeId) => ({ nodeId })),
    progress: fields.last === true ? WatchEvent_Progress.LAST_BACKLOGGED : WatchEvent_Progress.UNSPECIFIED,
  }).finish();
}

/** A gRPC error: the status number and the text sent along. */
export interface Refusal {
  readonly code: number;
  readonly message: string;
}

/** What a fake Curator has seen so far. Times are milliseconds since 1970. */
export interface Seen {
  readonly streams: readonly {
    readonly number: number;
    readonly nodeId: string;
    readonly openedAt: number;
    readonly open: boolean;
    /** Messages that nobody has taken yet: the reader is slow. */
    readonly waiting: number;
  }[];
  readonly announcements: readonly {
    readonly at: number;
    readonly nodeId: string;
    readonly key: string;
    readonly prefixes: readonly string[];
    /** Status number of the answer; 0 is OK. */
    readonly code: number;
  }[];
  readonly statusReports: readonly {
    readonly at: number;
    readonly nodeId: string;
    readonly externalAddress: string;
    /** All of the serialized NodeStatus. */
    readonly status: Uint8Array;
    readonly code: number;
  }[];
  /** Connections that an impostor took. */
  readonly callers: readonly Caller[];
}

/** How the backlog is sent to streams that are opened from now on. */
export interface BacklogStyle {
  /** Nodes in one event; all in one when left out. */
  readonly nodesPerEvent?: number;
  /** Milliseconds between two events of the backlog. */
  readonly pauseMs?: number;
  /** `hold`: LAST_BACKLOGGED waits for `releaseLast()`; `never`: it never comes. */
  readonly last?: "send" | "hold" | "never";
  /** Ends the stream (UNAVAILABLE) after so many events of the backlog. */
  readonly endAfter?: number;
  /** Send response headers at once, before the first event. */
  readonly headersFirst?: boolean;
  /** Send nothing at all: a Curator that still gathers its nodes. */
  readonly silent?: boolean;
}

/** What GetCurrentLeader answers. */
export interface FakeLeader {
  readonly nodeId: string;
  readonly host: string;
  readonly port: number;
  /** The node whose Curator answers; left out it does not say. */
  readonly thisNodeId?: string;
}

interface Stream {
  readonly number: number;
  readonly nodeId: string;
  readonly openedAt: number;
  open: boolean;
  readonly queue: (Uint8Array | Refusal)[];
  wake: () => void;
  lastHeld: boolean;
}

/** Field 15, length-delimited, of that many zeros. */
function unknownField(bytes: number): Uint8Array {
  const head = [(15 << 3) | 2];
  for (let rest = bytes; ; rest >>>= 7) {
    head.push(rest < 0x80 ? rest : (rest & 0x7f) | 0x80);
    if (rest < 0x80) break;
  }
  const field = new Uint8Array(head.length + bytes);
  field.set(head);
  return field;
}

export class FakeCurator implements AsyncDisposable {
  #server: Server | undefined;
  #host = "127.0.0.1";
  #port = 0;
  #transport: Pick<Transport, "credentials" | "identify"> | undefined;
  readonly #nodes = new Map<string, Uint8Array>();
  #style: BacklogStyle = {};
  #reflect = true;
  #leader: FakeLeader | undefined;
  /** Aborts when another one leads. */
  #leaderChange = new AbortController();
  #announcementRefusal: Refusal | undefined;
  #asMetropolis = false;
  #statusRefusal: Refusal | undefined;
  #watchRefusal: Refusal | undefined;
  #callsHang = false;
  #impostor: Impostor | undefined;
  readonly #callers: Caller[] = [];
  /** Events of `churn` so far. */
  #churned = 0;
  readonly #streams: Stream[] = [];
  readonly #announcements: Seen["announcements"][number][] = [];
  readonly #statusReports: Seen["statusReports"][number][] = [];

  /** Listens; port 0 takes a free one. Without `tls` in plain text. */
  static async start(
    options: { readonly listen?: string; readonly tls?: CredentialFiles } = {},
  ): Promise<FakeCurator> {
    const curator = new FakeCurator();
    const listen = options.listen ?? "127.0.0.1:0";
    const colon = listen.lastIndexOf(":");
    curator.#host = listen.slice(0, colon);
    curator.#port = Number(listen.slice(colon + 1));
    if (options.tls !== undefined) curator.#transport = tlsTransport(await readCredentials(options.tls));
    await curator.resume();
    return curator;
  }

  /** HOST:PORT for `--curator`. */
  get address(): string {
    return `${this.#host}:${this.#port}`;
  }

  get port(): number {
    return this.#port;
  }

  /** The nodes that streams opened from now on begin with, instead of those before. */
  backlog(...nodes: Uint8Array[]): void {
    this.#nodes.clear();
    for (const bytes of nodes) this.#nodes.set(Node.decode(bytes).id, bytes);
  }

  /** How streams opened from now on send their backlog. */
  style(style: BacklogStyle): void {
    this.#style = style;
  }

  /**
   * Adds or changes nodes: an event each on every open stream, and part of later backlogs. Returns when it began to send,
   * by `monotonicMs`.
   */
  put(...all: Uint8Array[]): number {
    const events = all.map((bytes) => {
      this.#nodes.set(Node.decode(bytes).id, bytes);
      return event({ nodes: [bytes] });
    });
    const sentAtMs = monotonicMs();
    for (const each of events) this.push(each);
    return sentAtMs;
  }

  /** Adds or changes these nodes by one event on every open stream. */
  putTogether(...nodes: Uint8Array[]): void {
    for (const bytes of nodes) this.#nodes.set(Node.decode(bytes).id, bytes);
    this.push(event({ nodes }));
  }

  /** Deletes a node: a tombstone on every open stream; later backlogs are without it. */
  remove(id: string): void {
    this.#nodes.delete(id);
    this.push(event({ tombstones: [id] }));
  }

  /** Leaves a node out of later backlogs and tells nobody: a tombstone that was lost. */
  forget(id: string): void {
    this.#nodes.delete(id);
  }

  /**
   * Sends these bytes as a message, `times` times, on every open stream or on one only; later backlogs do not change.
   * `ballast` puts a field of so many bytes behind them that no WatchEvent knows.
   */
  push(
    bytes: Uint8Array,
    options: { readonly stream?: number; readonly times?: number; readonly ballast?: number } = {},
  ): void {
    const message =
      options.ballast === undefined ? bytes : Buffer.concat([bytes, unknownField(options.ballast)]);
    for (const each of this.#streams) {
      if (!each.open || (options.stream !== undefined && each.number !== options.stream)) continue;
      for (let sent = 0; sent < (options.times ?? 1); sent++) this.#enqueue(each, message);
    }
  }

  /** Sends LAST_BACKLOGGED, in an event without nodes, to every stream that was opened with `last: "hold"`. */
  releaseLast(): void {
    for (const each of this.#streams) {
      if (!each.open || !each.lastHeld) continue;
      each.lastHeld = false;
      this.#enqueue(each, event({ last: true }));
    }
  }

  /** Ends every open stream, or one only, with this status after what was sent before. */
  endStreams(refusal: Refusal = { code: 14, message: "stream ended by test" }, stream?: number): void {
    for (const each of this.#streams) {
      if (each.open && (stream === undefined || each.number === stream)) this.#enqueue(each, refusal);
    }
  }

  /** Answers Watch with this status from now on; without one it serves again. */
  refuseWatches(refusal?: Refusal): void {
    this.#watchRefusal = refusal;
  }

  /** Answers UpdateNodeClusterNetworking with this status from now on; without one it takes them again. */
  refuseAnnouncements(refusal?: Refusal): void {
    this.#announcementRefusal = refusal;
  }

  /** Whether it judges announcements as Metropolis' Curator does (fakes/metropolis.ts); it takes all of them from the start. */
  judgeAsMetropolis(on: boolean): void {
    this.#asMetropolis = on;
  }

  /** Answers UpdateNodeStatus with this status from now on; without one it takes them again. */
  refuseStatusReports(refusal?: Refusal): void {
    this.#statusRefusal = refusal;
  }

  /** Whether what it takes shows up as a change of that node (on from the start). */
  reflect(on: boolean): void {
    this.#reflect = on;
  }

  /** Whether calls other than Watch get no answer at all from now on. */
  hangCalls(on: boolean): void {
    this.#callsHang = on;
  }

  /**
   * Whom GetCurrentLeader names; nobody from the start (UNAVAILABLE). As the real one's, its stream ends UNAVAILABLE when
   * this changes.
   */
  leader(leader?: FakeLeader): void {
    this.#leader = leader;
    this.#leaderChange.abort();
    this.#leaderChange = new AbortController();
  }

  seen(): Seen {
    return {
      streams: this.#streams.map(({ number, nodeId, openedAt, open, queue }) => ({
        number,
        nodeId,
        openedAt,
        open,
        waiting: queue.length,
      })),
      announcements: [...this.#announcements],
      statusReports: [...this.#statusReports],
      callers: [...this.#callers],
    };
  }

  /** The node as a stream opened now would show it. */
  current(id: string): Uint8Array | undefined {
    return this.#nodes.get(id);
  }

  /** Closes the port and cuts every connection; nodes and records stay. */
  pause(): void {
    this.#server?.forceShutdown();
    this.#server = undefined;
    for (const each of this.#streams) each.open = false;
  }

  /** Something that is no Curator answers at the address from now on; `resume` ends it. */
  async pretend(manner: Manner): Promise<void> {
    this.pause();
    await this.#impostor?.stop();
    const [host, port, callers] = [this.#host, this.#port, this.#callers];
    this.#impostor = await Impostor.start({ host, port, manner, callers });
  }

  /**
   * Many changes one after the other, on every open stream and in later backlogs: `nodes` nodes come with a key, an
   * address and a prefix of their own, change their prefix, and go, over and over.
   */
  churn({ events, nodes }: { readonly events: number; readonly nodes: number }): void {
    for (let sent = 0; sent < events; sent++) {
      const number = this.#churned % nodes;
      const round = Math.floor(this.#churned / nodes);
      this.#churned++;
      const id = `churn-${number}`;
      const phase = round % 3;
      if (phase === 2) {
        this.remove(id);
        continue;
      }
      const key = new Uint8Array(32).fill(1);
      const view = new DataView(key.buffer);
      view.setUint32(0, number);
      view.setUint32(4, Math.floor(round / 3));
      const octets = `${number >> 8}.${number & 255}`;
      const prefixes = [`10.${220 + phase}.${octets}/32`];
      this.put(node({ id, key: key.toBase64(), address: `198.19.${octets}`, prefixes }));
    }
  }

  /** Listens again on the same port. */
  async resume(): Promise<void> {
    await this.#impostor?.stop();
    this.#impostor = undefined;
    const server = createServer({
      "grpc.max_receive_message_length": 64 << 20,
      "grpc.max_send_message_length": -1,
    });
    // The bytes of an event go out as they are: an event may be no WatchEvent at all.
    server.add(byteCuratorDefinition, {
      watch: (request, context) => this.#watch(request, context),
      updateNodeClusterNetworking: (request, context) => this.#takeAnnouncement(request, context),
      updateNodeStatus: (request, context) => this.#takeStatusReport(request, context),
    });
    server.add(CuratorLocalDefinition, {
      getCurrentLeader: (_request, context) => this.#currentLeader(context),
    });
    this.#port = await server.listen(this.address, this.#transport?.credentials);
    this.#server = server;
  }

  stop(): void {
    this.pause();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.stop();
  }

  #enqueue(stream: Stream, what: Uint8Array | Refusal): void {
    stream.queue.push(what);
    stream.wake();
  }

  async *#watch(_request: WatchRequest, context: CallContext): AsyncGenerator<Uint8Array, void> {
    const stream: Stream = {
      number: this.#streams.length + 1,
      nodeId: this.#callerOf(context),
      openedAt: Date.now(),
      open: true,
      queue: [],
      wake: () => {},
      lastHeld: false,
    };
    this.#streams.push(stream);
    try {
      if (this.#watchRefusal !== undefined) throw errorOf(this.#watchRefusal);
      const style = this.#style;
      if (style.headersFirst === true) context.sendHeader();
      yield* this.#sendBacklog(stream, style);
      while (!context.signal.aborted) {
        const next = stream.queue.shift();
        if (next instanceof Uint8Array) yield next;
        else if (next !== undefined) throw errorOf(next);
        else await wakeOrAbort(stream, context.signal);
      }
    } finally {
      stream.open = false;
    }
  }

  async *#sendBacklog(stream: Stream, style: BacklogStyle): AsyncGenerator<Uint8Array, void> {
    if (style.silent === true) return;
    const nodes = [...this.#nodes.values()];
    const size = style.nodesPerEvent ?? Math.max(nodes.length, 1);
    const last = style.last ?? "send";
    stream.lastHeld = last === "hold";
    for (let from = 0; from === 0 || from < nodes.length; from += size) {
      if (from > 0 && style.pauseMs !== undefined) await Bun.sleep(style.pauseMs);
      if (style.endAfter !== undefined && from >= style.endAfter * size) {
        throw errorOf({ code: 14, message: "stream ended by test in its backlog" });
      }
      const ends = from + size >= nodes.length;
      yield event({ nodes: nodes.slice(from, from + size), last: ends && last === "send" });
    }
  }

  async #takeAnnouncement(
    request: UpdateNodeClusterNetworkingRequest,
    context: CallContext,
  ): Promise<Record<string, never>> {
    const nodeId = this.#callerOf(context);
    const announced = request.clusternet ?? NodeClusterNetworking.fromPartial({});
    const prefixes = announced.prefixes.map(({ cidr }) => cidr);
    const refusal = this.#announcementRefusal ?? this.#judge(nodeId, announced.wireguardPubkey, prefixes);
    this.#announcements.push({
      at: Date.now(),
      nodeId,
      key: announced.wireguardPubkey,
      prefixes,
      code: refusal?.code ?? 0,
    });
    await this.#hangMaybe(context);
    if (refusal !== undefined) throw errorOf(refusal);
    this.#change(nodeId, { clusternet: announced });
    return {};
  }

  #judge(nodeId: string, key: string, prefixes: readonly string[]): Refusal | undefined {
    if (!this.#asMetropolis) return undefined;
    const { status } = Node.decode(this.#nodes.get(nodeId) ?? node({ id: nodeId }));
    const { externalAddress = "" } = status === undefined ? {} : NodeStatus.decode(status);
    return metropolisRefusal({
      key,
      prefixes,
      externalAddress: externalAddress === "" ? undefined : externalAddress,
    });
  }

  async #takeStatusReport(
    request: UpdateNodeStatusRequest,
    context: CallContext,
  ): Promise<Record<string, never>> {
    if (this.#transport !== undefined) this.#callerOf(context);
    const status = request.status ?? new Uint8Array();
    const refusal = this.#statusRefusal;
    this.#statusReports.push({
      at: Date.now(),
      nodeId: request.nodeId,
      externalAddress: NodeStatus.decode(status).externalAddress,
      status,
      code: refusal?.code ?? 0,
    });
    await this.#hangMaybe(context);
    if (refusal !== undefined) throw errorOf(refusal);
    this.#change(request.nodeId, { status });
    return {};
  }

  /** With TLS by the one certificate, as the real one; without by the caller's own word. */
  #callerOf(context: CallContext): string {
    if (this.#transport === undefined) return Metadata(context.metadata).get("clusternet-node-id") ?? "";
    const caller = this.#transport.identify(context);
    if (typeof caller !== "string") throw errorOf(caller);
    return caller;
  }

  #change(nodeId: string, change: Partial<Node>): void {
    if (!this.#reflect) return;
    const before = this.#nodes.get(nodeId) ?? node({ id: nodeId });
    const after = Node.encode({ ...Node.decode(before), ...change }).finish();
    if (Buffer.compare(before, after) !== 0) this.put(after);
  }

  async #hangMaybe(context: CallContext): Promise<void> {
    if (!this.#callsHang) return;
    await new Promise<void>((resolve) => {
      context.signal.addEventListener("abort", () => resolve(), { once: true });
    });
  }

  async *#currentLeader(
    context: CallContext,
  ): AsyncGenerator<
    { leaderNodeId: string; leaderHost: string; leaderPort: number; thisNodeId: string },
    void
  > {
    const leader = this.#leader;
    if (leader !== undefined) {
      const { nodeId, host, port, thisNodeId = "" } = leader;
      const until = AbortSignal.any([this.#leaderChange.signal, context.signal]);
      yield { leaderNodeId: nodeId, leaderHost: host, leaderPort: port, thisNodeId };
      await aborted(until);
    }
    throw errorOf({ code: 14, message: "no leader" });
  }
}

function errorOf(refusal: Refusal): ServerError {
  // Any number is sent as it is: tests also want codes that gRPC does not know.
  return Object.assign(new ServerError(Status.UNKNOWN, refusal.message), { code: refusal.code });
}

function wakeOrAbort(stream: Stream, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      stream.wake = () => {};
      signal.removeEventListener("abort", done);
      resolve();
    };
    stream.wake = done;
    signal.addEventListener("abort", done, { once: true });
    if (signal.aborted) done();
  });
}
