/**
 * Our Curator with TLS: who calls is said by exactly one certificate, and the codes for others are the real one's.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Metadata, type Channel } from "nice-grpc";
import { tlsTransport } from "../../src/curator-server/tls.ts";
import { silentLogger } from "../../src/log.ts";
import { purpose } from "../../src/trust/certificate.ts";
import { readCredentials } from "../../src/trust/credentials.ts";
import { makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { impostors, issued, TestTrust, withoutDnsName } from "../trust/cluster.ts";
import {
  clientOf,
  codeOf,
  keyOf,
  refusalOf,
  startCluster,
  statusBytes,
  Stream,
  type TestCluster,
} from "./cluster.ts";
import { leaderOver, tlsChannel, type ClientIdentity } from "./tls-client.ts";

const trust = new TestTrust();
const channels: Channel[] = [];
let cluster: TestCluster;

beforeAll(async () => {
  const transport = tlsTransport(await readCredentials(trust.files("curator")));
  cluster = await startCluster({ transport });
});
afterAll(async () => {
  for (const channel of channels) channel.close();
  await cluster.stop();
  trust[Symbol.dispose]();
});

function channel(identity?: ClientIdentity): Channel {
  const made = tlsChannel(cluster.server.port, identity);
  channels.push(made);
  return made;
}

const nodeOf = (id: string): ClientIdentity => makeNodeCertificate(id, trust.ca, issued);
const status = (nodeId: string) => ({ nodeId, status: statusBytes("192.0.2.1") });

test("a node is known by its certificate, and writes itself alone", async () => {
  const a = clientOf(channel(nodeOf("a")), undefined);
  const prefixes = [{ cidr: "192.0.2.1/32" }, { cidr: "10.192.1.0/24" }];
  const clusternet = { wireguardPubkey: keyOf(1), prefixes };
  expect([
    await codeOf(a.updateNodeStatus(status("a"))),
    await codeOf(a.updateNodeClusterNetworking({ clusternet })),
    await codeOf(a.updateNodeStatus(status("b"))),
  ]).toEqual(["OK", "OK", "PERMISSION_DENIED"]);
  expect(cluster.server.registry.nodes.map(({ id, publicKey }) => [id, publicKey])).toEqual([
    ["a", keyOf(1)],
  ]);
});

test("a removed node is told NOT_FOUND, also on its stream", async () => {
  const gone = clientOf(channel(nodeOf("gone")), undefined);
  await gone.updateNodeStatus(status("gone"));
  const stream = new Stream(gone);
  await stream.next();
  await cluster.server.registry.remove("gone" as never);
  expect([
    await stream.end(),
    await codeOf(gone.updateNodeStatus(status("gone"))),
    await codeOf(
      gone.updateNodeClusterNetworking({ clusternet: { wireguardPubkey: keyOf(2), prefixes: [] } }),
    ),
  ]).toEqual(["NOT_FOUND", "NOT_FOUND", "NOT_FOUND"]);
});

const one = "Cannot tell who calls: ";
describe("callers that are refused, though they may ask who leads:", () => {
  const node = nodeOf("n");
  test.each<{ name: string; identity?: ClientIdentity; code: string; words: RegExp }>([
    {
      name: "one without a certificate",
      code: "UNAUTHENTICATED",
      words: /^Cannot tell who calls: no client certificate, expected exactly one$/,
    },
    {
      name: "a node that sends its CA along",
      identity: { ...node, sentAlong: [trust.ca.certificate] },
      code: "UNAUTHENTICATED",
      words: /^Cannot tell who calls: 2 client certificates, expected exactly one$/,
    },
    {
      name: "a node whose TLS library sends the CA along",
      identity: { ...node, ca: trust.ca.certificate },
      code: "UNAUTHENTICATED",
      words: /^Cannot tell who calls: 2 client certificates, expected exactly one$/,
    },
    {
      name: "a node that sends its certificate twice",
      identity: { ...node, sentAlong: [node.certificate] },
      code: "UNAUTHENTICATED",
      words: /^Cannot tell who calls: 2 client certificates, expected exactly one$/,
    },
    {
      name: "a manager",
      identity: withoutDnsName("owner", trust.ca, purpose.clientAuth),
      code: "PERMISSION_DENIED",
      words: /^Cannot serve this caller: its certificate is a manager's/,
    },
    ...impostors(trust.ca)
      .filter(({ sentAlong }) => sentAlong === undefined)
      .map(({ name, kind, reason, ...identity }) => ({
        name: `one with a certificate ${name}`,
        identity,
        code: kind === "stranger" ? "UNAUTHENTICATED" : "PERMISSION_DENIED",
        words: new RegExp(
          reason.source.replace("^", kind === "stranger" ? `^${one}` : "^Cannot serve this caller: "),
        ),
      })),
  ])("$name", async ({ identity, code, words }) => {
    const to = channel(identity);
    const client = clientOf(to, undefined);
    expect([
      await codeOf(client.updateNodeStatus(status("n"))),
      await codeOf(client.updateNodeClusterNetworking({})),
      await new Stream(client).end(),
      await leaderOver(to),
    ]).toEqual([code, code, code, "curator"]);
    expect(await refusalOf(client.updateNodeStatus(status("n")))).toMatch(words);
  });
});

test("a refused caller is logged once, however often it tries and from whichever port", async () => {
  const warnings: string[] = [];
  const log = { ...silentLogger, warn: (message: string) => void warnings.push(message) };
  const other = await startCluster({
    transport: tlsTransport(await readCredentials(trust.files("curator"))),
    log,
  });
  try {
    for (let count = 0; count < 4; count++) {
      const to = tlsChannel(other.server.port);
      channels.push(to);
      expect(await codeOf(clientOf(to, undefined).updateNodeStatus(status("n")))).toBe("UNAUTHENTICATED");
    }
    expect(warnings).toEqual([expect.stringContaining("no client certificate")]);
  } finally {
    await other.stop();
  }
});

test("what a caller says of itself counts for nothing", async () => {
  const nameless = clientOf(channel(), "a");
  expect(await codeOf(nameless.updateNodeStatus(status("a")))).toBe("UNAUTHENTICATED");
  const forged = Metadata();
  for (const key of ["clusternet-certificates-bin", "clusternet-certificates-00000000-bin"]) {
    forged.append(key, Buffer.from(nodeOf("a").certificate.raw));
  }
  const forger = clientOf(channel(withoutDnsName("owner", trust.ca, purpose.clientAuth)), "a");
  expect(await codeOf(forger.updateNodeStatus(status("a"), { metadata: forged }))).toBe("PERMISSION_DENIED");
});

test("a certificate counts as long as it is valid", async () => {
  let now = new Date("2026-06-01T00:00:00Z");
  const transport = tlsTransport(await readCredentials(trust.files("curator")), () => now);
  const other = await startCluster({ transport });
  const to = tlsChannel(other.server.port, nodeOf("a"));
  try {
    const client = clientOf(to, undefined);
    expect(await codeOf(client.updateNodeStatus(status("a")))).toBe("OK");
    now = new Date("2025-06-01T00:00:00Z");
    expect(await codeOf(client.updateNodeStatus(status("a")))).toBe("UNAUTHENTICATED");
  } finally {
    to.close();
    await other.stop();
  }
});

test("a client without TLS gets no answer", async () => {
  const { createChannel } = await import("nice-grpc");
  const plain = createChannel(`127.0.0.1:${cluster.server.port}`);
  channels.push(plain);
  expect(await codeOf(clientOf(plain, "a").updateNodeStatus(status("a")))).toBe("UNAVAILABLE");
});
