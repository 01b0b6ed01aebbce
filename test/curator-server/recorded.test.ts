/**
 * Every request that was sent to the real Curator (test/fixtures/update-clusternet.json), sent to ours: the same
 * status code and the same stored announcement, but for the differences that are listed here with their reason.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { tlsTransport } from "../../src/curator-server/tls.ts";
import {
  UpdateNodeClusterNetworkingRequest,
  UpdateNodeStatusRequest,
  type CuratorClient,
} from "../../src/gen/curator.ts";
import { purpose } from "../../src/trust/certificate.ts";
import { readCredentials } from "../../src/trust/credentials.ts";
import recorded from "../fixtures/update-clusternet.json";
import { certificateOf, TestTrust, withoutDnsName } from "../trust/cluster.ts";
import { clientOf, codeOf, startCluster, statusBytes, type TestCluster } from "./cluster.ts";
import { tlsChannel, type ClientIdentity } from "./tls-client.ts";

interface RecordedCase {
  readonly caller: string;
  readonly name: string;
  readonly status: string;
  readonly request_base64?: string;
  readonly stored?: { readonly prefixes: readonly string[]; readonly wireguard_pubkey: string };
}

/** A node with a valid certificate that was deleted; its key was announced before. */
const deleted = {
  id: "metropolis-9b25ff7ded1c806d7f289344ed834add",
  key: "/okKvSVEi6NAj05yJ9Ycu+uOgBVIF5Fx61wtOkDLOz8=",
};

/** Callers that differ by their certificate: they come with TLS, to a Curator that has it. */
const trust = new TestTrust();
const byCertificate = new Map<string, ClientIdentity | undefined>([
  ["manager", withoutDnsName("owner", trust.ca, purpose.clientAuth)],
  ["selfsigned", certificateOf("selfsigned", trust.ca, { selfSigned: true })],
  ["nocert", undefined],
]);

/** Where ours answers otherwise, and why. */
const different: Readonly<Record<string, readonly [status: string, why: string]>> = {
  "key of zeros": ["INVALID_ARGUMENT", "an all-zero key is no key"],
  "key in loose base64 (low bits of the last digit set)": [
    "INVALID_ARGUMENT",
    "not the canonical text of the key",
  ],
  "key with a newline at the end": ["INVALID_ARGUMENT", "not the canonical text of the key"],
  "key with a newline inside": ["INVALID_ARGUMENT", "not the canonical text of the key"],
  "the cluster network itself": ["INVALID_ARGUMENT", "it would take every other node's traffic"],
  "pod prefix of another node": ["INVALID_ARGUMENT", "it belongs to the node other"],
  "60,000 prefixes (1.2 MB)": ["INVALID_ARGUMENT", "more than 1,024 prefixes"],
  "80,000 prefixes (1.6 MB)": [
    "INVALID_ARGUMENT",
    "more than 1,024 prefixes, said before anything is stored",
  ],
  // Their external address is refused (see the statuses below), so they are no members.
  "IPv6 external address with zone": ["FAILED_PRECONDITION", "a link-local external address is unusable"],
  "IPv6 link-local external address": ["FAILED_PRECONDITION", "a link-local external address is unusable"],
  "status has IPv6 in upper case": ["FAILED_PRECONDITION", "the external address is not canonical"],
  "status has an IPv4-mapped address": ["FAILED_PRECONDITION", "an IPv4-mapped external address is unusable"],
  "status has an IPv4-mapped address, prefix too": [
    "FAILED_PRECONDITION",
    "an IPv4-mapped external address is unusable",
  ],
  "external address inside the cluster network": [
    "FAILED_PRECONDITION",
    "an external address inside ClusterNet is unusable",
  ],
};

const differentStatuses: typeof different = {
  "address 0.0.0.0": ["INVALID_ARGUMENT", "unspecified"],
  "address loopback": ["INVALID_ARGUMENT", "nobody else reaches a loopback address"],
  "address multicast": ["INVALID_ARGUMENT", "multicast"],
  "IPv6 upper case": ["INVALID_ARGUMENT", "not canonical: the announced prefix is compared as text"],
  "IPv4-mapped": ["INVALID_ARGUMENT", "IPv4-mapped"],
};

const cases: readonly RecordedCase[] = recorded.update_node_cluster_networking;
const statuses: readonly RecordedCase[] = recorded.update_node_status;

/** The requests with very many prefixes are not in the recording, only their number. */
function requestOf({ request_base64: base64, name }: RecordedCase): UpdateNodeClusterNetworkingRequest {
  if (base64 !== undefined) return UpdateNodeClusterNetworkingRequest.decode(Uint8Array.fromBase64(base64));
  const count = Number(/^([\d,]+) prefixes/.exec(name)?.[1]?.replaceAll(",", ""));
  const prefixes = Array.from({ length: count }, (_, index) => ({
    cidr: `10.${208 + (index >> 16)}.${(index >> 8) & 255}.${index & 255}/32`,
  }));
  return { clusternet: { wireguardPubkey: "6CQQWaZ6xr60gBlhiTolBC2TNQY9u/gDCIOST7/VAnI=", prefixes } };
}

function callerId(name: string): string {
  if (name === "deleted") return deleted.id;
  const caller = Object.entries(recorded.callers).find(([each]) => each === name)?.[1];
  if (caller === undefined || typeof caller === "string")
    throw new Error(`no node "${name}" in the recording`);
  return caller.id;
}

let cluster: TestCluster;
let secured: TestCluster;

beforeAll(async () => {
  secured = await startCluster({ transport: tlsTransport(await readCredentials(trust.files("curator"))) });
  cluster = await startCluster();
  await cluster.report(deleted.id, "192.0.2.200");
  await cluster.announce(deleted.id, deleted.key, []);
  await cluster.server.registry.remove(deleted.id as never);
  for (const caller of Object.values(recorded.callers)) {
    if (typeof caller === "string") continue;
    if ("external_address" in caller) await cluster.report(caller.id, caller.external_address);
    if ("wireguard_pubkey" in caller) {
      expect(await cluster.announce(caller.id, caller.wireguard_pubkey, caller.prefixes)).toBe("OK");
    }
  }
});
afterAll(async () => {
  await cluster.stop();
  await secured.stop();
  trust[Symbol.dispose]();
});

/** Calls with the certificate of one of these callers. */
async function callSecured(
  caller: string,
  call: (client: CuratorClient) => Promise<unknown>,
): Promise<string> {
  const channel = tlsChannel(secured.server.port, byCertificate.get(caller));
  try {
    return await codeOf(call(clientOf(channel, undefined)));
  } finally {
    channel.close();
  }
}

describe("UpdateNodeClusterNetworking answers as the real Curator", () => {
  test.each(cases)("$name", async (recordedCase) => {
    const { caller, name, status } = recordedCase;
    if (byCertificate.has(caller)) {
      const request = requestOf(recordedCase);
      expect(await callSecured(caller, (client) => client.updateNodeClusterNetworking(request))).toBe(status);
      return;
    }
    const id = callerId(caller);
    const got = await codeOf(cluster.client(id).updateNodeClusterNetworking(requestOf(recordedCase)));
    expect(got).toBe(different[name]?.[0] ?? status);
    if (got !== "OK" || recordedCase.stored === undefined) return;
    const stored = cluster.server.registry.nodes.find((node) => node.id === id);
    expect({ prefixes: stored?.prefixes ?? [], wireguard_pubkey: stored?.publicKey ?? "" }).toEqual({
      prefixes: [...recordedCase.stored.prefixes],
      wireguard_pubkey: recordedCase.stored.wireguard_pubkey,
    });
  });
});

describe("UpdateNodeStatus answers as the real Curator", () => {
  test.each(statuses)("$name", async (recordedCase) => {
    const { caller, status, request_base64: base64 = "" } = recordedCase;
    const request = UpdateNodeStatusRequest.decode(Uint8Array.fromBase64(base64));
    if (byCertificate.has(caller)) {
      expect(await callSecured(caller, (client) => client.updateNodeStatus(request))).toBe(status);
      return;
    }
    const client = cluster.client(callerId(caller));
    expect(await codeOf(client.updateNodeStatus(request))).toBe(
      differentStatuses[recordedCase.name]?.[0] ?? status,
    );
  });
});

test("the recording has every request, and every listed difference is one", () => {
  expect([cases.length, statuses.length]).toEqual([84, 16]);
  const differing = [
    ...cases.filter(({ name, status }) => different[name] !== undefined && different[name][0] !== status),
    ...statuses.filter(
      ({ name, status }) => differentStatuses[name] !== undefined && differentStatuses[name][0] !== status,
    ),
  ].map(({ name }) => name);
  expect(differing.toSorted()).toEqual(
    [...Object.keys(different), ...Object.keys(differentStatuses)].toSorted(),
  );
});

test("a status is stored with the Curator's time and everything else as it came", async () => {
  const { decodeStatus } = await import("../../src/curator-server/status-bytes.ts");
  const unknownField = Uint8Array.of(0xfa, 0x01, 3, 1, 2, 3);
  const sent = Buffer.concat([statusBytes("192.0.2.77"), Uint8Array.of(0x2a, 1, 9), unknownField]);
  await cluster.client("extra").updateNodeStatus({ nodeId: "extra", status: sent });
  const stored = cluster.server.registry.nodes.find(({ id }) => id === "extra");
  expect(decodeStatus(stored?.status ?? new Uint8Array())).toEqual({
    externalAddress: "192.0.2.77",
    timeless: sent,
  });
});
