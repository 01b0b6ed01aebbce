/**
 * What comes over connections, damaged: the answers of a Curator, the requests to ours, and both ends of the Unix
 * sockets. Each end gives its own errors or its own refusals, and goes on.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Client, credentials, Metadata, type ServiceError } from "@grpc/grpc-js";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { renderNodeTable } from "../../src/commands/node.ts";
import { parsePublicKey } from "../../src/core/key.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { changeMembership, readNodes, startAdminSocket } from "../../src/curator-server/admin.ts";
import type { CuratorConnection } from "../../src/curator/connection.ts";
import { connectGrpc } from "../../src/curator/grpc-connection.ts";
import { decodeWatchEvent } from "../../src/curator/wire.ts";
import {
  CuratorDefinition,
  GetCurrentLeaderResponse,
  UpdateNodeClusterNetworkingRequest,
  UpdateNodeStatusRequest,
  WatchRequest,
} from "../../src/gen/curator.ts";
import type { PrivateServer } from "../../src/host/private-socket.ts";
import { buildStatus, noCurator } from "../../src/status.ts";
import { fetchStatus } from "../../src/status-socket.ts";
import { renderStatus } from "../../src/status-text.ts";
import { keyOf, nodeId } from "../core/nodes.ts";
import { startCluster, statusBytes, type TestCluster } from "../curator-server/cluster.ts";
import updates from "../fixtures/update-clusternet.json";
import watchFixture from "../fixtures/watch.json";
import { waitFor } from "../lab/wait.ts";
import { damagedBytes, damagedJson, damagedText } from "./damage.ts";
import { HostileGrpc, type HostileAnswer } from "./hostile-grpc.ts";
import { httpAnswer, RawServer } from "../fakes/raw-server.ts";
import { expectShowable, holdToIt } from "./verdict.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "fuzz-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

interface RecordedStep {
  readonly events?: readonly { readonly base64: string }[];
}

const events = (watchFixture.steps as unknown as readonly RecordedStep[])
  .flatMap(({ events = [] }) => events)
  .map(({ base64 }) => Uint8Array.fromBase64(base64));
const leader = GetCurrentLeaderResponse.encode({
  leaderNodeId: "metropolis-b",
  leaderHost: "192.0.2.2",
  leaderPort: 7835,
  thisNodeId: "metropolis-c",
}).finish();

describe("a Curator that answers anything at all:", () => {
  let server: HostileGrpc;
  let connection: CuratorConnection;
  beforeAll(async () => {
    server = await HostileGrpc.start();
    connection = connectGrpc(server.address, { nodeId: nodeId("a") });
  });
  afterAll(async () => {
    connection.close();
    await server[Symbol.asyncDispose]();
  });

  const message = damagedBytes([...events, leader]).chain((bytes) =>
    fc.record({
      bytes: fc.constant(bytes),
      length: fc.oneof(
        { weight: 9, arbitrary: fc.constant(bytes.length) },
        { weight: 1, arbitrary: fc.constantFrom(0, bytes.length + 1, 0x7fff_ffff, 0xffff_ffff) },
      ),
      flag: fc.oneof(
        { weight: 9, arbitrary: fc.constant(0) },
        { weight: 1, arbitrary: fc.constantFrom(1, 255) },
      ),
    }),
  );
  const answerOf = (maxMessages: number): fc.Arbitrary<HostileAnswer> =>
    fc.record({
      httpStatus: fc.oneof(
        { weight: 9, arbitrary: fc.constant(200) },
        { weight: 1, arbitrary: fc.constantFrom(204, 302, 404, 500) },
      ),
      contentType: fc.oneof(
        { weight: 9, arbitrary: fc.constant("application/grpc") },
        { weight: 1, arbitrary: fc.constantFrom("text/html", "application/grpc+json", "x") },
      ),
      messages: fc.array(message, { maxLength: maxMessages }),
      trailers: fc.option(
        fc.record({
          status: fc.oneof(fc.nat(17).map(String), fc.constantFrom("", "99", "-1", "abc", "1e3")),
          message: fc.oneof(
            damagedText(["no such node", "larger than max (5 vs. 4)"]).map(encodeLoosely),
            fc.constantFrom("%", "%zz", "%1B%5B2J%0A", "%ff%fe", "x".repeat(5_000)),
          ),
        }),
        { nil: undefined, freq: 9 },
      ),
    });

  // One message too many, and gRPC waits for a status that nobody reads: our limit of 10 s ends that call.
  test.each<{ name: string; maxMessages: number; call: (signal: AbortSignal) => Promise<unknown> }>([
    {
      name: "Watch",
      maxMessages: 3,
      call: (signal) => Array.fromAsync(connection.watchNodes(signal)),
    },
    {
      name: "GetCurrentLeader",
      maxMessages: 3,
      call: (signal) => Array.fromAsync(connection.watchLeader(signal)),
    },
    {
      name: "UpdateNodeClusterNetworking",
      maxMessages: 1,
      call: (signal) =>
        connection.announce(
          { publicKey: parsePublicKey(keyOf(1)), prefixes: [parsePrefix("10.192.1.0/24")] },
          signal,
        ),
    },
    {
      name: "UpdateNodeStatus",
      maxMessages: 1,
      call: (signal) =>
        connection.reportStatus(
          { nodeId: nodeId("a"), externalAddress: parseAddress("192.0.2.1"), time: new Date(0) },
          signal,
        ),
    },
  ])("$name gives values, or a CuratorError that can be shown", async ({ call, maxMessages }) => {
    const signal = new AbortController().signal;
    await holdToIt(
      answerOf(maxMessages),
      async (each) => {
        server.answer = each;
        return await call(signal);
      },
      6,
    );
  });
});

/** Percent-encoded as gRPC has it, as far as the text can be. */
function encodeLoosely(text: string): string {
  return encodeURIComponent(text.toWellFormed());
}

describe("our Curator, called with anything at all:", () => {
  let cluster: TestCluster;
  let client: Client;
  beforeAll(async () => {
    cluster = await startCluster();
    client = new Client(`127.0.0.1:${cluster.server.port}`, credentials.createInsecure());
    for (const id of ["a", "b"]) await cluster.report(id, "192.0.2.1");
  });
  afterAll(async () => {
    client.close();
    await cluster.stop();
  });

  const recorded = updates.update_node_cluster_networking
    .flatMap((each) => ("request_base64" in each ? [Uint8Array.fromBase64(each.request_base64 ?? "")] : []))
    .filter(({ length }) => length < 2_000);
  const announcements = [
    ...recorded,
    UpdateNodeClusterNetworkingRequest.encode({
      clusternet: {
        wireguardPubkey: keyOf(1),
        prefixes: [{ cidr: "10.192.1.0/24" }, { cidr: "192.0.2.1/32" }],
      },
    }).finish(),
  ];
  const statuses = ["a", "b"].map((id) =>
    UpdateNodeStatusRequest.encode({ nodeId: id, status: statusBytes("192.0.2.1") }).finish(),
  );
  const { methods } = CuratorDefinition;
  /** Names that metadata can carry: printable ASCII. */
  const callers = fc.oneof(
    { weight: 8, arbitrary: fc.constantFrom("a", "b") },
    { weight: 1, arbitrary: fc.string({ unit: "grapheme-ascii", maxLength: 300 }).map((id) => id.trim()) },
  );

  test.each([
    {
      name: "UpdateNodeStatus",
      method: methods.updateNodeStatus,
      samples: [...statuses, ...announcements],
      decode: (bytes: Uint8Array) => void UpdateNodeStatusRequest.decode(bytes),
    },
    {
      name: "UpdateNodeClusterNetworking",
      method: methods.updateNodeClusterNetworking,
      samples: [...announcements, ...statuses],
      decode: (bytes: Uint8Array) => void UpdateNodeClusterNetworkingRequest.decode(bytes),
    },
  ])("$name is answered or refused in words, and no node becomes one that agents cannot read", async (at) => {
    const expected = new Set([0, 3, 5, 7, 9, 16]);
    await holdToIt(
      fc.tuple(callers, damagedBytes(at.samples)),
      async ([caller, bytes]) => {
        const { code, details } = await callRaw(client, at.method.name, caller, bytes);
        // What is no message is refused by gRPC itself.
        if (code === 13) expect(() => at.decode(bytes)).toThrow();
        else expect(expected).toContain(code);
        expectShowable(details);
      },
      3,
    );
    expect(await problemsOfPicture(cluster)).toEqual([]);
  });

  test("Watch is served or refused in words, and lets go of all that were cancelled", async () => {
    const samples = [undefined, "a", "b/c", "x".repeat(300)].map((nodeId) =>
      WatchRequest.encode({
        kind:
          nodeId === undefined
            ? { $case: "nodesInCluster", nodesInCluster: {} }
            : { $case: "nodeInCluster", nodeInCluster: { nodeId } },
      }).finish(),
    );
    // Those that are cancelled take their time to be gone.
    const expected = new Set([3, 5, 7, 8, 12, 16]);
    await holdToIt(
      fc.tuple(callers, damagedBytes(samples)),
      async ([caller, bytes]) => {
        const refused = await watchRaw(client, caller, bytes);
        if (refused === undefined) return;
        if (refused.code === 13) expect(() => WatchRequest.decode(bytes)).toThrow();
        else expect(expected).toContain(refused.code);
        expectShowable(refused.details);
      },
      5,
    );
    const { fanOut } = cluster.server.registry;
    await waitFor(() => fanOut.watchers === 0, "every cancelled watch to be let go");
  });
});

/**
 * Watch with these very bytes as request: the status that it is refused with, or undefined once the Curator has answered
 * a later call and has not refused this one.
 */
async function watchRaw(
  client: Client,
  caller: string,
  bytes: Uint8Array,
): Promise<{ readonly code: number; readonly details: string } | undefined> {
  const metadata = new Metadata();
  metadata.set("clusternet-node-id", caller);
  const stream = client.makeServerStreamRequest(
    `/${CuratorDefinition.fullName}/${CuratorDefinition.methods.watch.name}`,
    (request: Uint8Array) => Buffer.from(request),
    (answer) => answer,
    bytes,
    metadata,
  );
  const { promise, resolve } = Promise.withResolvers<ServiceError | undefined>();
  stream.on("error", resolve);
  stream.on("data", () => resolve(undefined));
  const later = callRaw(client, CuratorDefinition.methods.updateNodeStatus.name, "a", new Uint8Array());
  const refused = await Promise.race([promise, later.then(() => undefined)]);
  stream.cancel();
  return refused;
}

/** What an agent would have to report of all that this Curator holds. */
async function problemsOfPicture(cluster: TestCluster): Promise<readonly string[]> {
  for await (const event of cluster
    .client("a")
    .watch({ kind: { $case: "nodesInCluster", nodesInCluster: {} } })) {
    return decodeWatchEvent(event, nodeId("a")).problems.map(({ message }) => message);
  }
  throw new Error("no picture came");
}

/** One unary call with these very bytes. */
function callRaw(
  client: Client,
  method: string,
  caller: string,
  bytes: Uint8Array,
): Promise<{ readonly code: number; readonly details: string }> {
  const metadata = new Metadata();
  metadata.set("clusternet-node-id", caller);
  const { promise, resolve } = Promise.withResolvers<{ readonly code: number; readonly details: string }>();
  client.makeUnaryRequest(
    `/${CuratorDefinition.fullName}/${method}`,
    (request: Uint8Array) => Buffer.from(request),
    (answer) => answer,
    bytes,
    metadata,
    (error: ServiceError | null) => {
      resolve(error === null ? { code: 0, details: "" } : { code: error.code, details: error.details });
    },
  );
  return promise;
}

/** Bodies of a damaged form in good HTTP, and damaged HTTP. */
function answers(bodies: readonly string[]): fc.Arbitrary<string> {
  return fc.oneof(
    {
      weight: 3,
      arbitrary: fc
        .tuple(damagedJson(bodies), fc.constantFrom("200 OK", "400 Bad Request", "503 x", "500"))
        .map(([body, status]) => httpAnswer(body, status)),
    },
    { weight: 1, arbitrary: damagedText(bodies.map((body) => httpAnswer(body))) },
  );
}

describe("the socket of an agent:", () => {
  test("whatever answers there, `status` shows it or says why not", async () => {
    const status = JSON.stringify(
      buildStatus({
        version: "0.1.0",
        agent: { running: true, pid: 7, startedAt: new Date(0), notReady: ["x"], unhealthy: ["y"] },
        node: { id: nodeId("a"), announced: [parsePrefix("10.192.1.0/24")], announcedAt: new Date(0) },
        curator: { ...noCurator, address: "192.0.2.2:7835", since: new Date(0), lastEventAt: new Date(0) },
        source: "file",
        sourceAt: new Date(0),
        interfaceName: "clusternet",
        mesh: {
          peers: [
            {
              nodeId: nodeId("b"),
              publicKey: parsePublicKey(keyOf(2)),
              prefixes: [parsePrefix("10.192.2.0/24")],
            },
          ],
        },
        listenPort: 7838,
        problems: [{ kind: "key-own", nodeId: nodeId("b"), message: "it is", since: new Date(0) }],
        now: new Date(),
      }),
    );
    const path = join(directory, "agent.sock");
    await using socket = await RawServer.listen({ path });
    await holdToIt(
      answers([status]),
      async (bytes) => {
        socket.answer = bytes;
        const fetched = await fetchStatus(path, 1_500);
        if (fetched.kind !== "status") return fetched;
        const shown = renderStatus(fetched.status, { now: new Date(), color: false });
        for (const line of shown.split("\n")) expectShowable(line);
        return undefined;
      },
      4,
    );
  });
});

describe("the socket of our Curator:", () => {
  let cluster: TestCluster;
  let admin: PrivateServer;
  beforeAll(async () => {
    cluster = await startCluster();
    for (const id of ["a", "b"]) await cluster.report(id, "192.0.2.1");
    admin = startAdminSocket(directory, cluster.server.registry);
  });
  afterAll(async () => {
    await admin.stop();
    await cluster.stop();
  });

  test("whatever is asked is answered in JSON, and never with a failure of the server", async () => {
    const request = fc.record({
      method: fc.constantFrom("GET", "POST", "PUT", "DELETE", "PATCH"),
      path: fc.oneof(fc.constant("/nodes"), damagedText(["/nodes", "/nodes?x=1"]).map(pathOf)),
      type: fc.constantFrom("application/json", "text/plain", ""),
      body: damagedJson(['{"change":"remove","id":"none"}', '{"change":"allow","id":"none"}']),
    });
    await holdToIt(
      request,
      async ({ method, path, type, body }) => {
        const response = await fetch(`http://curator/${path.replace(/^\/+/, "")}`, {
          unix: join(directory, "curator.sock"),
          method,
          headers: { "content-type": type },
          ...(method === "GET" ? {} : { body }),
        });
        const answer: unknown = await response.json();
        expect([200, 400, 404]).toContain(response.status);
        if (response.status !== 200) expectShowable(String(Reflect.get(Object(answer), "error")));
      },
      4,
    );
    expect((await readNodes(directory)).map(({ id }) => id)).toEqual(["a", "b"]);
  });

  test("whatever answers there, `node` shows it or fails in its own words", async () => {
    const inside = join(directory, "other");
    mkdirSync(inside);
    const listed = JSON.stringify({ nodes: await readNodes(directory) });
    await using socket = await RawServer.listen({ path: join(inside, "curator.sock") });
    await holdToIt(
      answers([listed, '{"outcome":"done"}', '{"error":"Cannot store the change: try again"}']),
      async (bytes) => {
        socket.answer = bytes;
        const shown = renderNodeTable(await readNodes(inside), new Date());
        for (const line of shown.split("\n")) expectShowable(line);
      },
      4,
    );
    await holdToIt(
      answers(['{"outcome":"done"}', '{"error":"Cannot store the change: try again"}', listed]),
      async (bytes) => {
        socket.answer = bytes;
        return await changeMembership(inside, { change: "allow", id: "a" });
      },
      4,
    );
  });
});

/** As a URL can have it: no lone surrogates, and not so long that the HTTP of Bun refuses it. */
function pathOf(text: string): string {
  return encodeURI(text.slice(0, 500).toWellFormed());
}
