/**
 * A real Curator on a free port and real clients for the tests beside this file.
 */
import { createChannel, createClientFactory, Metadata, type Channel } from "nice-grpc";
import { Status } from "nice-grpc-common";
import { parsePrefix } from "../../src/core/prefix.ts";
import {
  insecureTransport,
  startCuratorServer,
  type CuratorServer,
  type Transport,
} from "../../src/curator-server/server.ts";
import { MemoryStore, type NodeStore } from "../../src/curator-server/store.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import {
  CuratorDefinition,
  CuratorLocalDefinition,
  Node,
  WatchEvent_Progress,
  type CuratorClient,
  type CuratorLocalClient,
  type WatchEvent,
} from "../../src/gen/curator.ts";
import { silentLogger, type Logger } from "../../src/log.ts";

export interface TestCluster {
  readonly server: CuratorServer;
  /** A client whose calls name `id`; no metadata at all without one. */
  client(id?: string): CuratorClient;
  local(): CuratorLocalClient;
  report(id: string, externalAddress: string): Promise<string>;
  announce(id: string, publicKey: string, prefixes: readonly string[]): Promise<string>;
  stop(): Promise<void>;
}

export interface TestClusterSettings {
  readonly store?: NodeStore;
  readonly clusterNets?: readonly string[];
  readonly log?: Logger;
  /** Default: no TLS. With another one the clients of this cluster do not fit. */
  readonly transport?: Transport;
  readonly port?: number;
  readonly now?: () => number;
  readonly keepalive?: { readonly timeMs: number; readonly timeoutMs: number };
}

export async function startCluster(settings: TestClusterSettings = {}): Promise<TestCluster> {
  const { clusterNets = ["10.192.0.0/11"], keepalive, now } = settings;
  const server = await startCuratorServer({
    listen: { host: "127.0.0.1", port: settings.port ?? 0 },
    transport: settings.transport ?? insecureTransport(),
    store: settings.store ?? new MemoryStore(),
    clusterNets: clusterNets.map(parsePrefix),
    log: settings.log ?? silentLogger,
    ...(keepalive === undefined ? {} : { keepalive }),
    ...(now === undefined ? {} : { now }),
  });
  const channel = createChannel(`127.0.0.1:${server.port}`, undefined, {
    "grpc.max_send_message_length": -1,
  });
  const client = (id?: string): CuratorClient => clientOf(channel, id);
  return {
    server,
    client,
    local: () => createClientFactory().create(CuratorLocalDefinition, channel),
    report: (id, externalAddress) =>
      codeOf(client(id).updateNodeStatus({ nodeId: id, status: statusBytes(externalAddress) })),
    announce: (id, wireguardPubkey, prefixes) =>
      codeOf(
        client(id).updateNodeClusterNetworking({
          clusternet: { wireguardPubkey, prefixes: prefixes.map((cidr) => ({ cidr })) },
        }),
      ),
    async stop() {
      channel.close();
      await server.stop();
    },
  };
}

export function clientOf(channel: Channel, id: string | undefined): CuratorClient {
  return createClientFactory().create(
    CuratorDefinition,
    channel,
    id === undefined ? {} : { "*": { metadata: Metadata({ "clusternet-node-id": id }) } },
  );
}

export function statusBytes(externalAddress: string): Uint8Array {
  return NodeStatus.encode(NodeStatus.fromPartial({ externalAddress })).finish();
}

/** "OK", or the name of the gRPC status that the call was refused with. */
export async function codeOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return "OK";
  } catch (error) {
    return codeNameOf(error);
  }
}

export function codeNameOf(error: unknown): string {
  if (error instanceof Error && "code" in error) return Status[Number(error.code)] ?? String(error.code);
  throw error;
}

/** The words of a refusal. */
export async function refusalOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
  } catch (error) {
    if (error instanceof Error && "details" in error) return String(error.details);
    throw error;
  }
  throw new Error("the call was not refused");
}

/** What a watch stream brings, one event after the other, without losing any between two questions. */
export class Stream {
  readonly #events: AsyncIterator<WatchEvent>;
  readonly #abort = new AbortController();

  constructor(client: CuratorClient, node?: string) {
    const kind =
      node === undefined
        ? ({ $case: "nodesInCluster", nodesInCluster: {} } as const)
        : ({ $case: "nodeInCluster", nodeInCluster: { nodeId: node } } as const);
    this.#events = client.watch({ kind }, { signal: this.#abort.signal })[Symbol.asyncIterator]();
  }

  /** The next event, short. */
  async next(): Promise<SeenEvent> {
    const next = await this.#events.next();
    if (next.done === true) throw new Error("the stream ended without an error");
    return seenEvent(next.value);
  }

  /** The status that the stream ends with, whatever comes before. */
  async end(): Promise<string> {
    try {
      for (;;) await this.next();
    } catch (error) {
      return codeNameOf(error);
    }
  }

  close(): void {
    this.#abort.abort();
  }
}

export interface SeenEvent {
  readonly nodes: readonly SeenNode[];
  readonly tombstones: readonly string[];
  readonly last: boolean;
}

export interface SeenNode {
  readonly id: string;
  readonly externalAddress: string;
  readonly publicKey: string;
  readonly prefixes: readonly string[];
}

export function seenEvent(event: WatchEvent): SeenEvent {
  return {
    nodes: event.nodes.map((bytes) => seenNode(Node.decode(bytes))),
    tombstones: event.nodeTombstones.map(({ nodeId }) => nodeId),
    last: event.progress === WatchEvent_Progress.LAST_BACKLOGGED,
  };
}

function seenNode(node: Node): SeenNode {
  return {
    id: node.id,
    externalAddress: NodeStatus.decode(node.status ?? new Uint8Array()).externalAddress,
    publicKey: node.clusternet?.wireguardPubkey ?? "",
    prefixes: node.clusternet?.prefixes.map(({ cidr }) => cidr) ?? [],
  };
}

/** A public key for tests, another for every number. */
export function keyOf(number: number): string {
  const bytes = new Uint8Array(32).fill(7);
  new DataView(bytes.buffer).setUint32(0, number);
  return bytes.toBase64();
}
