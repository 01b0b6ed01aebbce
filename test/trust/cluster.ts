/**
 * Certificates for tests: a cluster CA with the credentials of its nodes as files, and every kind of certificate that
 * must be refused.
 */
import { generateKeyPairSync, type KeyObject, type X509Certificate } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { purpose } from "../../src/trust/certificate.ts";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import {
  type CertificateContent,
  endOfTime,
  type KeyedCertificate,
  makeClusterCa,
  makeNodeCertificate,
  signCertificate,
} from "../../src/trust/make-certificate.ts";

/** Before any test runs. */
export const issued = new Date("2026-01-01T00:00:00Z");

/** A certificate with what differs from a node's; by another CA when given. */
export function certificateOf(
  commonName: string,
  ca: KeyedCertificate,
  changes: Partial<CertificateContent> & { readonly keys?: KeyPair; readonly selfSigned?: boolean } = {},
): KeyedCertificate {
  const { keys = generateKeyPairSync("ed25519"), selfSigned = false, ...content } = changes;
  const certificate = signCertificate(
    {
      commonName,
      dnsName: commonName,
      isCa: false,
      purposes: [purpose.serverAuth],
      publicKey: keys.publicKey,
      notBefore: issued,
      notAfter: endOfTime,
      ...content,
    },
    selfSigned ? { key: keys.privateKey } : ca,
  );
  return { certificate, key: keys.privateKey };
}

/** A pair of keys of any type. */
export interface KeyPair {
  readonly publicKey: KeyObject;
  readonly privateKey: KeyObject;
}

/** A certificate that must be refused, the others sent along, and what the refusal says. */
export interface Impostor extends KeyedCertificate {
  readonly name: string;
  readonly sentAlong?: readonly X509Certificate[];
  readonly kind: "stranger" | "no-node";
  readonly reason: RegExp;
}

/** Every kind of certificate that is no node's of the CA's cluster. */
export function impostors(ca: KeyedCertificate): readonly Impostor[] {
  const sameName = makeClusterCa(issued);
  const otherName = certificateOf("Other CA", ca, { isCa: true, selfSigned: true });
  const below = certificateOf("Sub CA", ca, { isCa: true });
  return [
    {
      name: "of a foreign CA with the name of ours",
      ...makeNodeCertificate("curator", sameName, issued),
      kind: "stranger",
      reason:
        /^its certificate is signed by another CA of the same name, expected the cluster CA "CN=clusternet cluster CA" of Jan {2}1/,
    },
    {
      name: "of a foreign CA with its own name",
      ...makeNodeCertificate("curator", otherName, issued),
      sentAlong: [otherName.certificate],
      kind: "stranger",
      reason:
        /^its certificate is signed by another CA, "CN=Other CA", expected the cluster CA "CN=clusternet cluster CA"$/,
    },
    {
      name: "signed by itself",
      ...certificateOf("curator", ca, { selfSigned: true }),
      kind: "stranger",
      reason: /^its certificate is signed by itself \("CN=curator"\), expected the cluster CA/,
    },
    {
      name: "signed by itself, of nobody",
      ...certificateOf("", ca, { selfSigned: true, dnsName: "curator" }),
      kind: "stranger",
      reason: /^its certificate is signed by itself \(""\), expected the cluster CA/,
    },
    {
      name: "of ours, of nobody",
      ...certificateOf("", ca, { dnsName: "curator" }),
      kind: "no-node",
      reason: /^its certificate names "", expected a node ID as common name$/,
    },
    {
      name: "of a CA below ours",
      ...makeNodeCertificate("curator", below, issued),
      sentAlong: [below.certificate],
      kind: "stranger",
      reason:
        /^its certificate is signed by "CN=Sub CA", a CA below the cluster CA, expected the cluster CA .* itself$/,
    },
    {
      name: "of a CA below ours that is not sent along",
      ...makeNodeCertificate("curator", below, issued),
      kind: "stranger",
      reason: /^its certificate is signed by another CA, "CN=Sub CA", expected/,
    },
    {
      name: "of the CA itself",
      ...ca,
      kind: "no-node",
      reason: /^it sent the cluster CA's own certificate, expected that of a node$/,
    },
    {
      name: "of a CA that ours has signed",
      ...below,
      kind: "no-node",
      reason: /^its certificate is that of a CA, expected that of a node$/,
    },
    {
      name: "of a manager",
      ...withoutDnsName("owner", ca, purpose.clientAuth),
      kind: "no-node",
      reason: /^its certificate is a manager's \(client auth only\), expected a node's \(server auth only\)$/,
    },
    {
      name: "for client and server auth",
      ...certificateOf("curator", ca, { purposes: [purpose.clientAuth, purpose.serverAuth] }),
      kind: "no-node",
      reason:
        /^its certificate is for 1\.3\.6\.1\.5\.5\.7\.3\.2, 1\.3\.6\.1\.5\.5\.7\.3\.1, expected for server auth only$/,
    },
    {
      name: "with a key of another type",
      ...certificateOf("curator", ca, { keys: generateKeyPairSync("ec", { namedCurve: "prime256v1" }) }),
      kind: "no-node",
      reason: /^the key of its certificate is ec, expected Ed25519$/,
    },
    {
      name: "without a DNS name",
      ...withoutDnsName("curator", ca),
      kind: "no-node",
      reason: /^its certificate has no DNS name, expected one DNS name equal to the common name "curator"$/,
    },
    {
      name: "with another DNS name",
      ...certificateOf("curator", ca, { dnsName: "other" }),
      kind: "no-node",
      reason:
        /^its certificate has the names "DNS:other", expected one DNS name equal to the common name "curator"$/,
    },
    {
      name: "with a DNS name that looks like two",
      ...certificateOf("curator", ca, { dnsName: "curator, DNS:curator" }),
      kind: "no-node",
      reason: /^its certificate has the names "DNS:/,
    },
    {
      name: "with a common name that is no node ID",
      ...certificateOf("two words", ca),
      kind: "no-node",
      reason: /^its certificate names "CN=two words", expected a node ID as common name$/,
    },
    {
      name: "not valid yet",
      ...certificateOf("curator", ca, { notBefore: new Date("2126-01-01T00:00:00Z") }),
      kind: "stranger",
      reason: /^its certificate is not valid before Jan {2}1 00:00:00 2126 GMT$/,
    },
    {
      name: "not valid any more",
      ...certificateOf("curator", ca, { notAfter: new Date("2026-01-02T00:00:00Z") }),
      kind: "stranger",
      reason: /^its certificate expired on Jan {2}2 00:00:00 2026 GMT$/,
    },
  ];
}

/** A certificate without a DNS name, which managers have. */
export function withoutDnsName(
  commonName: string,
  ca: KeyedCertificate,
  use: string = purpose.serverAuth,
): KeyedCertificate {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const certificate = signCertificate(
    {
      commonName,
      isCa: false,
      purposes: [use],
      publicKey,
      notBefore: issued,
      notAfter: endOfTime,
    },
    ca,
  );
  return { certificate, key: privateKey };
}

/** A cluster whose credentials lie in a temporary directory. */
export class TestTrust implements Disposable {
  readonly ca = makeClusterCa(issued);
  readonly directory = mkdtempSync(join(tmpdir(), "clusternet-trust-"));

  /** Writes the credentials of a node, or others in its place. */
  files(
    name: string,
    changes: { readonly own?: KeyedCertificate; readonly ca?: X509Certificate } = {},
  ): CredentialFiles {
    const { certificate, key } = changes.own ?? makeNodeCertificate(name, this.ca, issued);
    const path = (what: string): string => join(this.directory, `${name}-${what}.pem`);
    const files = { ca: path("ca"), cert: path("cert"), key: path("cert-key") };
    writeFileSync(files.ca, (changes.ca ?? this.ca.certificate).toString());
    writeFileSync(files.cert, certificate.toString());
    writeFileSync(files.key, revealKey(key), { mode: 0o600 });
    return files;
  }

  [Symbol.dispose](): void {
    rmSync(this.directory, { recursive: true, force: true });
  }
}
