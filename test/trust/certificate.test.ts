/** Which certificates are those of a node: every refusal says what was found. */
import { describe, expect, test } from "bun:test";
import { caProblem, judgeCertificates, parseCertificate } from "../../src/trust/certificate.ts";
import { makeClusterCa, makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { certificateOf, impostors, issued } from "./cluster.ts";

const ca = makeClusterCa(issued);
const now = new Date("2026-12-01T12:00:00Z");
const judge = (sent: Parameters<typeof judgeCertificates>[0]) =>
  judgeCertificates(sent, { ca: ca.certificate, now });

describe("judgeCertificates()", () => {
  test.each(["node-1", "metropolis-08480dc1c75f3a84796f3859a4cbec77", "a.b-c.0"])("takes node %s", (id) => {
    expect(judge([makeNodeCertificate(id, ca, issued).certificate])).toEqual({
      kind: "node",
      nodeId: id as never,
    });
  });

  test("takes a node whatever it sends along", () => {
    const others = [ca.certificate, makeNodeCertificate("other", ca, issued).certificate];
    expect(judge([makeNodeCertificate("own", ca, issued).certificate, ...others])).toEqual({
      kind: "node",
      nodeId: "own" as never,
    });
  });

  test("refuses nothing at all", () => {
    expect(judge([])).toEqual({ kind: "stranger", reason: "it sent no certificate" });
  });

  test.each(impostors(ca))("refuses one $name", ({ certificate, sentAlong = [], kind, reason }) => {
    const verdict = judge([certificate, ...sentAlong]);
    expect(verdict).toEqual({ kind, reason: expect.stringMatching(reason) });
  });

  test("gives another reason for each kind of them", () => {
    const reasons = impostors(ca).map(({ certificate, sentAlong = [] }) => {
      const verdict = judge([certificate, ...sentAlong]);
      return verdict.kind === "node" ? "accepted" : verdict.reason;
    });
    expect(new Set(reasons).size).toBe(reasons.length);
    expect(reasons.join("")).not.toMatch(/[^\x20-\x7e]/);
  });

  test("says the same of each of them an hour later, so that no other try is news", () => {
    const later = new Date(now.getTime() + 3_600_000);
    for (const { certificate, sentAlong = [] } of impostors(ca)) {
      const sent = [certificate, ...sentAlong];
      expect(judgeCertificates(sent, { ca: ca.certificate, now: later })).toEqual(judge(sent));
    }
  });

  test("leaves the time out when none is given", () => {
    const { certificate } = certificateOf("late", ca, { notBefore: new Date("2126-01-01T00:00:00Z") });
    expect(judgeCertificates([certificate], { ca: ca.certificate }).kind).toBe("node");
  });
});

describe("caProblem()", () => {
  test("takes a cluster CA", () => {
    expect(caProblem(ca.certificate)).toBeUndefined();
  });

  test.each([
    {
      name: "a node's",
      certificate: makeNodeCertificate("a", ca, issued).certificate,
      want: 'it is the certificate of "CN=a", which is no CA',
    },
    {
      name: "a CA below another",
      certificate: certificateOf("Sub", ca, { isCa: true }).certificate,
      want: "it is not signed by itself, expected the CA at the root",
    },
    { name: "one with a key of another type", certificate: ecCa(), want: "its key is ec, expected Ed25519" },
  ])("refuses $name", ({ certificate, want }) => {
    expect(caProblem(certificate)).toBe(want);
  });
});

const one = ca.certificate.toString();

test.each([
  { name: "nothing", text: "", want: "it has no PEM block, expected exactly one certificate" },
  {
    name: "two certificates",
    text: `${one}\n${one}`,
    want: "it has 2 PEM blocks, 2 of them certificates, expected exactly one certificate",
  },
  {
    name: "a key",
    text: one.replaceAll("CERTIFICATE", "PRIVATE KEY"),
    want: "it has 1 PEM blocks, 0 of them certificates, expected exactly one certificate",
  },
  { name: "one cut short", text: one.slice(0, 200), want: "its certificate cannot be decoded" },
  {
    name: "one with a wrong byte in its structure",
    text: one.replace("MII", "AII"),
    want: "its certificate cannot be decoded",
  },
  {
    name: "bytes",
    text: "\u0000\ufffd\u0001",
    want: "it has no PEM block, expected exactly one certificate",
  },
])("parseCertificate() refuses $name", ({ text, want }) => {
  expect(() => parseCertificate(text)).toThrow(new RegExp(`^${want}$`));
});

/** Made once with `openssl req -x509 -newkey ec`: our own maker signs with Ed25519 only. */
function ecCa() {
  return parseCertificate(`-----BEGIN CERTIFICATE-----
MIIBhzCCAS2gAwIBAgIUYyVLKdhaTBzgJnRwHUnI7Y6mrIMwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFRUMgQ0EwIBcNMjYxMjAxMjI0MjI0WhgPOTk2NjExMDYyMjQy
MjRaMBAxDjAMBgNVBAMMBUVDIENBMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
mxREml2u6as6NiFn00ysS1YYl76U6MmcG+G1j0pAz/LojjRJQgLAYwyW1Tbfb42g
QWduvA3qKkC4P9uZh+6iyaNjMGEwHQYDVR0OBBYEFCNCqzPWBMtrcvUkg2DBtuEF
EyGNMB8GA1UdIwQYMBaAFCNCqzPWBMtrcvUkg2DBtuEFEyGNMA8GA1UdEwEB/wQF
MAMBAf8wDgYDVR0PAQH/BAQDAgIEMAoGCCqGSM49BAMCA0gAMEUCIG0yfuboTr0v
E0h8y9RfaYdtdeY2WS3BzGM3iN8+FbexAiEA/JReVhPFqV6PDWU/XTWe89TJ1sYa
YBFktB29mRxEcUM=
-----END CERTIFICATE-----
`);
}
