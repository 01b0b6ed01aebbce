/**
 * The baseline for our Curator: a nice-grpc server that streams bytes which are ready.
 *
 *     bun scripts/bench/ready-bytes.ts HOST:PORT COPIED-HOST:PORT
 *
 * It first watches the Curator at the second address for the backlog and one change, and then sends just these messages:
 * the backlog to everybody who watches, and the change to everybody whenever somebody reports a status. Prints
 * "copied" when it has the backlog, "ready" when it listens. It knows no node, stores nothing and checks nobody.
 */
import { createChannel, createClient, createServer, Metadata } from "nice-grpc";
import { byteCuratorDefinition } from "../../src/curator/event-bytes.ts";
import { WatchEvent, WatchEvent_Progress } from "../../src/gen/curator.ts";

const [listen = "", copied = ""] = process.argv.slice(2);

const backlog: Uint8Array[] = [];
let changed: Uint8Array | undefined;
const channel = createChannel(`dns:${copied}`, undefined, { "grpc.max_receive_message_length": -1 });
const metadata = new Metadata().set("clusternet-node-id", "copier");
const watched = createClient(byteCuratorDefinition, channel).watch(
  { kind: { $case: "nodesInCluster", nodesInCluster: {} } },
  { metadata },
);
let caughtUp = false;
for await (const message of watched) {
  if (caughtUp) {
    changed = message;
    break;
  }
  backlog.push(message);
  caughtUp = WatchEvent.decode(message).progress === WatchEvent_Progress.LAST_BACKLOGGED;
  if (caughtUp) console.log("copied");
}
channel.close();
const change = changed ?? new Uint8Array();

let next = Promise.withResolvers<void>();
const server = createServer({ "grpc.max_send_message_length": -1, "grpc.so_reuseport": 0 });
const { watch, updateNodeStatus } = byteCuratorDefinition.methods;
server.add(
  { ...byteCuratorDefinition, methods: { watch, updateNodeStatus } },
  {
    async *watch(_request: unknown, { signal }: { readonly signal: AbortSignal }) {
      yield* backlog;
      while (!signal.aborted) {
        await next.promise;
        yield change;
      }
    },
    async updateNodeStatus() {
      const now = next;
      next = Promise.withResolvers();
      now.resolve();
      return {};
    },
  },
);
await server.listen(listen);
console.log("ready");
