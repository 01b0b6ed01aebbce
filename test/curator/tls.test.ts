/**
 * Whom the agent takes for a Curator: real TLS servers with every kind of certificate, and what of the agent reaches
 * them before it has judged.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { credentials } from "@grpc/grpc-js";
import { createServer } from "node:net";
import { createChannel } from "nice-grpc";
import type { NodeId } from "../../src/core/node.ts";
import { parseAddress } from "../../src/core/prefix.ts";
import { createCurator } from "../../src/curator/client.ts";
import type { CuratorConnection } from "../../src/curator/connection.ts";
import { connectGrpc, type GrpcOptions } from "../../src/curator/grpc-connection.ts";
import { NodeCredentials, requireHook } from "../../src/curator/tls.ts";
import { CuratorError } from "../../src/errors.ts";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import { makeClusterCa, makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { clientOf, codeOf, statusBytes } from "../curator-server/cluster.ts";
import { event, FakeCurator, node } from "../fakes/curator.ts";
import { waitFor } from "../lab/wait.ts";
import { impostors, issued, TestTrust } from "../trust/cluster.ts";
import { TlsServer } from "../trust/tls-server.ts";

const self = "a" as NodeId;
const forever = new AbortController().signal;
const trust = new TestTrust();
let tls: CredentialFiles;
beforeAll(() => {
  tls = trust.files(self);
});
afterAll(() => trust[Symbol.dispose]());

function connect(address: string, options: Partial<GrpcOptions> = {}): CuratorConnection & Disposable {
  const connection = connectGrpc(address, { nodeId: self, tls, ...options });
  return Object.assign(connection, { [Symbol.dispose]: () => connection.close() });
}

const report = { nodeId: self, externalAddress: parseAddress("192.0.2.1"), time: issued };

/** What the first call over the connection ends with. */
async function errorOf(connection: CuratorConnection): Promise<CuratorError> {
  try {
    await connection.reportStatus(report, forever);
  } catch (error) {
    if (error instanceof CuratorError) return error;
    throw error;
  }
  throw new Error("the Curator was accepted");
}

const hint =
  "Check that this is the address of a Curator of this cluster, and that ca.pem is the cluster's CA";

const hintOfTime =
  "Renew the Curator's certificate (`clusternet pki issue` makes one), or set the clock of this machine";

describe("a Curator is refused whose certificate is", () => {
  test.each(impostors(trust.ca))("$name", async ({ reason, ...own }) => {
    await using server = await TlsServer.start(own);
    using connection = connect(server.address);
    const error = await errorOf(connection);
    const start = `Cannot trust Curator "${server.address}": `;
    expect([error.untrusted, error.hint, error.message.slice(0, start.length)]).toEqual([
      true,
      own.name.startsWith("not valid ") ? hintOfTime : hint,
      start,
    ]);
    expect(error.message.slice(start.length)).toMatch(reason);
    // Not one byte of HTTP/2, and no connection is left open.
    connection.close();
    await waitFor(() => server.open === 0, "the connection to be closed");
    expect(server.seen.filter(({ bytes }) => bytes > 0)).toEqual([]);
    expect(server.connections).toBeGreaterThan(0);
  });

  test.each<{ name: string; options: Partial<GrpcOptions>; want: string }>([
    {
      name: "that of none of the accepted nodes",
      options: { curatorIds: ["x" as NodeId, "y" as NodeId] },
      want: 'its certificate is that of node "curator", expected "x" or "y" (--curator-id)',
    },
    {
      name: "not that of the leader",
      options: { curatorIds: ["curator" as NodeId], expectedId: "leader" as NodeId },
      want: 'its certificate is that of node "curator", expected "leader", which was said to lead',
    },
  ])("$name", async ({ options, want }) => {
    await using server = await TlsServer.start(makeNodeCertificate("curator", trust.ca, issued));
    using connection = connect(server.address, options);
    const { untrusted, message } = await errorOf(connection);
    expect([untrusted, message]).toEqual([true, `Cannot trust Curator "${server.address}": ${want}`]);
    expect(server.seen.filter(({ bytes }) => bytes > 0)).toEqual([]);
  });
});

test("an older TLS is no connection", async () => {
  const own = makeNodeCertificate("curator", trust.ca, issued);
  await using server = await TlsServer.start({ ...own, maxVersion: "TLSv1.2" });
  using connection = connect(server.address);
  const { untrusted, message } = await errorOf(connection);
  expect([untrusted, message]).toEqual([
    false,
    `Cannot reach Curator "${server.address}": the TLS handshake failed: tlsv1 alert protocol version`,
  ]);
  expect(server.seen.filter(({ bytes }) => bytes > 0)).toEqual([]);
});

test("exactly one certificate is sent to a Curator, which is then spoken to", async () => {
  await using server = await TlsServer.start(makeNodeCertificate("curator", trust.ca, issued));
  using connection = connect(server.address);
  const stop = new AbortController();
  const ended = connection.reportStatus(report, stop.signal).catch(() => undefined);
  await waitFor(() => (server.seen[0]?.bytes ?? 0) > 0, "the call to reach the server");
  stop.abort();
  await ended;
  expect(server.seen.map(({ certificates }) => certificates)).toEqual([1]);
});

test("a whole conversation goes over TLS, with a Curator that only knows its callers by their certificate", async () => {
  await using curator = await FakeCurator.start({ tls: trust.files("curator") });
  curator.backlog(node({ id: "a" }), node({ id: "b" }));
  using connection = connect(curator.address, { curatorIds: ["curator" as NodeId] });
  await connection.reportStatus(report, forever);
  for await (const { nodes, lastBacklogged } of connection.watchNodes(forever)) {
    expect([nodes.map(({ id }) => id), lastBacklogged]).toEqual([["a" as NodeId, "b" as NodeId], true]);
    break;
  }
  const { statusReports, streams } = curator.seen();
  expect([...statusReports, ...streams].map(({ nodeId }) => nodeId)).toEqual(["a", "a"]);
});

test("a large event passes, and one after the other", async () => {
  await using curator = await FakeCurator.start({ tls: trust.files("curator") });
  const key = "x".repeat(1 << 20);
  const large = event({
    nodes: Array.from({ length: 5 }, (_, at) => node({ id: `n${at}`, key })),
    last: true,
  });
  using connection = connect(curator.address);
  let events = 0;
  for await (const { nodes } of connection.watchNodes(forever, () => {})) {
    if (events === 0) curator.push(large, { times: 3 });
    else expect(nodes).toHaveLength(5);
    if (++events === 4) break;
  }
});

test("credentials are read again for each connection", async () => {
  await using curator = await FakeCurator.start({ tls: trust.files("curator") });
  const files = trust.files("b", { ca: makeClusterCa(issued).certificate });
  const b = { nodeId: "b" as NodeId, tls: files };
  using before = connect(curator.address, b);
  expect((await errorOf(before)).message).toContain(
    `Cannot use node certificate "${files.cert}": its certificate is signed by another CA of the same name`,
  );
  trust.files("b");
  using after = connect(curator.address, b);
  await after.reportStatus({ ...report, nodeId: "b" as NodeId }, forever);
});

test("credentials that came to name another node are not used", async () => {
  await using curator = await FakeCurator.start({ tls: trust.files("curator") });
  const files = trust.files("c", { own: makeNodeCertificate("d", trust.ca, issued) });
  using connection = connect(curator.address, { nodeId: "c" as NodeId, tls: files });
  const { message, untrusted } = await errorOf(connection);
  expect([message, untrusted]).toEqual([
    `Cannot reach Curator "${curator.address}": Cannot use node certificate "${files.cert}": ` +
      'it now names node "d", expected "c"',
    false,
  ]);
  expect(curator.seen().statusReports).toEqual([]);
});

test("a Curator that accepts and says nothing is given up after 5 s, and its socket closed", async () => {
  const sockets = new Set<{ readonly destroyed: boolean }>();
  const server = createServer((socket) => {
    socket.on("error", () => {});
    sockets.add(socket);
    socket.resume();
  });
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the server has no port");
  try {
    const started = performance.now();
    using connection = connect(`127.0.0.1:${address.port}`);
    const { message, untrusted } = await errorOf(connection);
    expect([message, untrusted]).toEqual([
      `Cannot reach Curator "127.0.0.1:${address.port}": no answer within 5 s`,
      false,
    ]);
    expect(performance.now() - started).toBeLessThan(9_000);
    connection.close();
    await waitFor(() => [...sockets].every(({ destroyed }) => destroyed), "all sockets to be closed");
  } finally {
    server.close();
  }
}, 30_000);

describe("without the hook it hangs on there is no connection at all:", () => {
  test("gRPC that connects in another way is found out at once", () => {
    expect(() => requireHook({ _connectSecurely: () => {} })).toThrow("in another way");
    expect(() => requireHook(credentials.createInsecure())).not.toThrow();
  });

  test("gRPC that does not wait for the connector gets no connection", async () => {
    class NoWait extends NodeCredentials {
      override _createSecureConnector(...args: Parameters<NodeCredentials["_createSecureConnector"]>) {
        return { ...super._createSecureConnector(...args), waitForReady: () => Promise.resolve() };
      }
    }
    await using server = await TlsServer.start(makeNodeCertificate("curator", trust.ca, issued));
    const channel = createChannel(server.address, new NoWait({ files: tls, self, handshakeMs: 1_000 }));
    const client = clientOf(channel, undefined);
    const call = client.updateNodeStatus({ nodeId: self, status: statusBytes("192.0.2.1") });
    expect(await codeOf(call)).toBe("UNAVAILABLE");
    channel.close();
    expect(server.seen).toEqual([]);
  });
});

test("createCurator() reports an untrusted Curator until it is replaced by a right one, and follows that", async () => {
  const [impostor] = impostors(trust.ca);
  if (impostor === undefined) throw new Error("there are impostors");
  await using wrong = await TlsServer.start(impostor);
  await using right = await FakeCurator.start({ tls: trust.files("curator") });
  right.pause();
  const curator = createCurator({
    addresses: [wrong.address, right.address],
    nodeId: self,
    credentials: tls,
  });
  const stop = new AbortController();
  const following = (async () => {
    for await (const _ of curator.follow(stop.signal)) {
      // Only what it reports counts here.
    }
  })();
  try {
    await waitFor(
      () => curator.problems.get().some(({ kind }) => kind === "curator-untrusted"),
      "the impostor to be reported",
    );
    const untrusted = curator.problems.get().find(({ kind }) => kind === "curator-untrusted");
    expect(untrusted?.message).toMatch(
      /^Cannot trust Curator "127\.0\.0\.1:\d+": its certificate is signed by another CA/,
    );
    await right.resume();
    await waitFor(() => curator.state.get().state === "connected", {
      limitMs: 20_000,
      what: "the right Curator to be followed",
    });
    expect(curator.state.get().address).toBe(right.address);
  } finally {
    stop.abort();
    await following;
  }
}, 40_000);

test.each(["", "two words"])("createCurator() refuses %j as the ID of a Curator", (id) => {
  expect(() => createCurator({ addresses: ["x"], nodeId: self, credentials: tls, curatorIds: [id] })).toThrow(
    "expected 1 to 253 printable ASCII characters without spaces",
  );
});
