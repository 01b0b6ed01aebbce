/** What libraries say of a Curator that cannot be reached, in our words. A refusal and its kinds: integration/cli.test.ts. */
import { expect, test } from "bun:test";
import { describeUnreachable } from "../../src/curator/unreachable.ts";

const ours = "Check host and port: is that a Curator of this cluster?";

// As grpc-js 1.14.7, nice-grpc 2.1.18 and Bun 1.4.5 were seen to say it.
test.each<{ details: string; reason: string; hint?: string }>([
  {
    details: "Connection attempt timed out after 5000ms",
    reason: "no answer within 5 s",
    hint: "Is the machine up, the address right, and does every firewall let TCP through to that port?",
  },
  {
    details: "Protocol error (2026-12-02T07:04:41.756Z)",
    reason: "what answers there does not speak gRPC",
    hint: ours,
  },
  {
    details: "Failed to connect (2026-12-02T07:04:41.759Z)",
    reason: "the connection was closed at once",
    hint: `${ours} One with TLS does that to a node that speaks without (--insecure)`,
  },
  {
    details: "error:100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER",
    reason: "what answers there does not speak TLS",
    hint: `${ours} One that runs with --insecure speaks without TLS`,
  },
  {
    details: "error:1000042e:SSL routines:OPENSSL_internal:TLSV1_ALERT_PROTOCOL_VERSION",
    reason: "the TLS handshake failed: tlsv1 alert protocol version",
    hint: ours,
  },
  {
    details: "Client network socket disconnected before secure TLS connection was established",
    reason: "the connection was closed in the TLS handshake",
    hint: ours,
  },
  {
    details: "the TLS handshake did not end in time",
    reason: "no answer in the TLS handshake within 5 s",
    hint: ours,
  },
  {
    details: "getaddrinfo EAI_AGAIN",
    reason: "no name server answers",
    hint: "Check /etc/resolv.conf and the name server, or give the Curator's address instead of its name",
  },
  {
    details: "getaddrinfo ENOTFOUND",
    reason: "its name is not known",
    hint: "Check the name, or give the Curator's address instead",
  },
  {
    details: "Name resolution failed for target dns:no-such.invalid:7835",
    reason: "its name is not known",
    hint: "Check the name, or give the Curator's address instead",
  },
  { details: "something of a later version", reason: "something of a later version" },
])("describeUnreachable() of $details", async ({ details, ...want }) => {
  expect(await describeUnreachable("curator.example:7835", details, 0)).toEqual(want);
});

test.each([
  { tookMs: 0, reason: "connection refused" },
  { tookMs: 3_060, reason: "no machine answers at that address" },
])("a refusal after $tookMs ms: $reason", async ({ tookMs, reason }) => {
  const found = await describeUnreachable("127.0.0.1:1", "connect ECONNREFUSED 127.0.0.1:1", tookMs);
  expect(found).toMatchObject({ reason });
});

test("a name may be slow to be resolved, which says nothing of the machine", async () => {
  const found = await describeUnreachable("localhost:1", "connect ECONNREFUSED 127.0.0.1:1", 3_060);
  expect(found).toMatchObject({ reason: "connection refused" });
});
