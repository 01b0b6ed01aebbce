/**
 * Many watchers that are no agents, each on a connection of its own: the load for a Curator.
 *
 *     bun scripts/bench/watchers.ts CURATOR-HOST:PORT PART [CREDENTIALS]
 *
 * The watchers are nodes `part-PART-0`, `part-PART-1` and so on, with as many streams each as our Curator allows. With
 * TLS their credentials lie in folders of these names.
 *
 * Takes commands on standard input and answers with JSON lines (`WatchersReport`): `open N [EVERY]` watches all nodes N
 * times and reports when the last has the whole backlog, and later when the last has each change (or each EVERYth);
 * `change` has node-00001 report its status, which is an event for everybody; `close` lets all watchers go. Messages are
 * counted and not decoded. A stream that fails is opened again after a second, as an agent would.
 */
import {
  type ChannelCredentials,
  Client,
  credentials,
  Metadata,
  status,
  type ClientReadableStream,
} from "@grpc/grpc-js";
import { join } from "node:path";
import { asNodeId } from "../../src/core/node.ts";
import { NodeCredentials } from "../../src/curator/tls.ts";
import { maxWatchesOfCaller } from "../../src/curator-server/service.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import {
  CuratorDefinition,
  UpdateNodeStatusRequest,
  WatchEvent,
  WatchEvent_Progress,
  WatchRequest,
} from "../../src/gen/curator.ts";
import { credentialNames } from "../../src/trust/credential-files.ts";
import { monotonicMs } from "../../test/lab/monotonic.ts";

/** What is reported; times by `monotonicMs`. */
export type WatchersReport =
  | {
      readonly kind: "backlog";
      /** Before the first connection. */
      readonly openedAtMs: number;
      /** When the first stream was asked for, its connection being there. */
      readonly askedAtMs: number;
      readonly lastAtMs: number;
      /** Streams that were opened more than once. */
      readonly failures: number;
    }
  /** The last watcher has that many changes; the first is 1. */
  | { readonly kind: "change"; readonly number: number; readonly lastAtMs: number }
  /** A change was asked for and is answered. */
  | { readonly kind: "changed"; readonly sentAtMs: number; readonly answeredAtMs: number }
  | { readonly kind: "closed" };

/** Reports its status whenever a change is wanted. */
export const changingNode = "node-00001";

/** A node that opens streams. */
export function partNode(part: string, number: number): string {
  return `part-${part}-${number}`;
}

const retryMs = 1_000;
const connectLimitMs = 120_000;

/** How a message ends that has LAST_BACKLOGGED and no tombstone. */
const lastBacklogged = Buffer.from(
  WatchEvent.encode(WatchEvent.fromPartial({ progress: WatchEvent_Progress.LAST_BACKLOGGED })).finish(),
);
const watchAll = Buffer.from(
  WatchRequest.encode({ kind: { $case: "nodesInCluster", nodesInCluster: {} } }).finish(),
);
const pathOf = (method: "Watch" | "UpdateNodeStatus"): string => `/${CuratorDefinition.fullName}/${method}`;
const asIs = (bytes: Buffer): Buffer => bytes;

function report(what: WatchersReport): void {
  console.log(JSON.stringify(what));
}

function metadataOf(id: string): Metadata {
  const metadata = new Metadata();
  metadata.set("clusternet-node-id", id);
  return metadata;
}

/** Where the Curator is, and how these nodes show who they are. */
interface Target {
  readonly address: string;
  /** Directory of credentials; without TLS none. */
  readonly trust: string | undefined;
  /** Which part of all watchers this process has. */
  readonly part: string;
}

function connect({ address, trust }: Target, nodeId: string): Client {
  return new Client(address, trust === undefined ? credentials.createInsecure() : secure(trust, nodeId), {
    // A connection each, not one for all of this process.
    "grpc.use_local_subchannel_pool": 1,
    "grpc.max_receive_message_length": -1,
  });
}

function secure(trust: string, nodeId: string): ChannelCredentials {
  const self = asNodeId(nodeId);
  if (self === undefined) throw new Error(`"${nodeId}" is no node ID`);
  const path = (name: string): string => join(trust, nodeId, name);
  const files = {
    ca: path(credentialNames.ca),
    cert: path(credentialNames.cert),
    key: path(credentialNames.key),
  };
  return new NodeCredentials({ files, self, handshakeMs: connectLimitMs });
}

class Watchers {
  readonly #target: Target;
  readonly #wanted: number;
  readonly #every: number;
  readonly #clients: Client[] = [];
  readonly #calls: ClientReadableStream<Buffer>[] = [];
  readonly #openedAtMs = monotonicMs();
  #askedAtMs = Infinity;
  #caughtUp = 0;
  #failures = 0;
  #closed = false;
  /** How many watchers have the first, second … change. */
  readonly #changes: number[] = [];

  /** Of the changes each `every`th is told. */
  constructor(target: Target, wanted: number, every: number) {
    this.#target = target;
    this.#wanted = wanted;
    this.#every = every;
    for (let number = 0; number < wanted; number++) {
      this.#open(partNode(target.part, Math.floor(number / maxWatchesOfCaller)));
    }
  }

  close(): void {
    this.#closed = true;
    for (const call of this.#calls) call.cancel();
    for (const client of this.#clients) client.close();
  }

  #open(id: string): void {
    const client = connect(this.#target, id);
    this.#clients.push(client);
    client.waitForReady(Date.now() + connectLimitMs, (error) => {
      if (error !== undefined) return this.#retry(client, id);
      this.#askedAtMs = Math.min(this.#askedAtMs, monotonicMs());
      this.#follow(
        client.makeServerStreamRequest(pathOf("Watch"), asIs, asIs, watchAll, metadataOf(id)),
        client,
        id,
      );
    });
  }

  #follow(call: ClientReadableStream<Buffer>, client: Client, id: string): void {
    this.#calls.push(call);
    let caughtUp = false;
    let changes = 0;
    call.on("data", (message: Buffer) => {
      if (caughtUp) return this.#onChange(changes++);
      if (!message.subarray(-lastBacklogged.length).equals(lastBacklogged)) return;
      caughtUp = true;
      if (++this.#caughtUp < this.#wanted) return;
      report({
        kind: "backlog",
        openedAtMs: this.#openedAtMs,
        askedAtMs: this.#askedAtMs,
        lastAtMs: monotonicMs(),
        failures: this.#failures,
      });
    });
    call.on("error", (error: Error & { readonly code?: number }) => {
      if (this.#closed && error.code === status.CANCELLED) return;
      if (caughtUp)
        throw new Error(`A watcher that was served lost its stream: ${error.message}`, { cause: error });
      this.#retry(client, id);
    });
  }

  #retry(client: Client, id: string): void {
    client.close();
    if (this.#closed) return;
    this.#failures++;
    setTimeout(() => this.#open(id), retryMs * (0.5 + Math.random()));
  }

  #onChange(index: number): void {
    const count = (this.#changes[index] ?? 0) + 1;
    this.#changes[index] = count;
    if (count === this.#wanted && (index + 1) % this.#every === 0)
      report({ kind: "change", number: index + 1, lastAtMs: monotonicMs() });
  }
}

async function change(client: Client): Promise<void> {
  const nodeId = changingNode;
  const reported = NodeStatus.encode(NodeStatus.fromPartial({ externalAddress: "198.18.0.1" })).finish();
  const request = Buffer.from(UpdateNodeStatusRequest.encode({ nodeId, status: reported }).finish());
  const sentAtMs = monotonicMs();
  await new Promise<void>((resolve, reject) => {
    client.makeUnaryRequest(pathOf("UpdateNodeStatus"), asIs, asIs, request, metadataOf(nodeId), (error) =>
      error === null ? resolve() : reject(error),
    );
  });
  report({ kind: "changed", sentAtMs, answeredAtMs: monotonicMs() });
}

if (import.meta.main) {
  const [address = "", part = "", trust] = process.argv.slice(2);
  const target: Target = { address, trust, part };
  const changer = connect(target, changingNode);
  let watchers: Watchers | undefined;
  for await (const line of console) {
    const [command, count, every = 1] = line.split(" ");
    if (command === "open") watchers = new Watchers(target, Number(count), Number(every));
    else if (command === "change") await change(changer);
    else if (command === "close") {
      watchers?.close();
      report({ kind: "closed" });
    } else break;
  }
  process.exit(0);
}
