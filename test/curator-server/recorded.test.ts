/**
 * Every request that was sent to the real Curator (test/fixtures/update-clusternet.json), sent to ours: the same
 * status code and the same stored announcement, but for the differences that are listed here with their reason.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { UpdateNodeClusterNetworkingRequest } from "../../src/gen/curator.js";
import recorded from "../fixtures/update-clusternet.json";
import { codeOf, startCluster, statusBytes, type TestCluster } from "./cluster.ts";

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

/** Callers that differ by their certificate: they come with TLS. */
const needTls = new Set(["manager", "selfsigned", "nocert"]);

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

beforeAll(async () => {
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
afterAll(() => cluster.stop());

describe("UpdateNodeClusterNetworking answers as the real Curator", () => {
  test.each(cases.filter(({ caller }) => !needTls.has(caller)))("$name", async (recordedCase) => {
    const { caller, name, status } = recordedCase;
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
  test.each(statuses.filter(({ caller }) => !needTls.has(caller)))("$name", async (recordedCase) => {
    const id = callerId(recordedCase.caller);
    const base64 = recordedCase.request_base64 ?? "";
    const client = cluster.client(id);
    const { UpdateNodeStatusRequest } = await import("../../src/gen/curator.js");
    const request = UpdateNodeStatusRequest.decode(Uint8Array.fromBase64(base64));
    expect(await codeOf(client.updateNodeStatus(request))).toBe(
      differentStatuses[recordedCase.name]?.[0] ?? recordedCase.status,
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
