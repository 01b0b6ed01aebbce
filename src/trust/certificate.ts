/**
 * What makes a certificate that of a node of this cluster (C2), judged the same way by the agent of its Curator, by our
 * Curator of its callers, and of the files that a node is given.
 *
 * No name that was dialled plays a part, and nothing of what the TLS library thinks: node certificates are for server
 * auth only, also when a client shows them, and the library would ask the wrong questions. It has only seen to it that
 * whoever is there holds the key of the first certificate.
 */
import { X509Certificate } from "node:crypto";
import { asNodeId, type NodeId } from "../core/node.ts";
import { quote } from "../core/problem.ts";
import { ClusternetError } from "../errors.ts";

/** Extended key usages that a cluster knows, as object identifiers. */
export const purpose = {
  serverAuth: "1.3.6.1.5.5.7.3.1",
  clientAuth: "1.3.6.1.5.5.7.3.2",
  ocspSigning: "1.3.6.1.5.5.7.3.9",
} as const;

/**
 * `stranger`: not signed by the cluster CA, or not valid now; `no-node`: of this cluster, but no node's. `reason`
 * says what was found and expected, as the end of a sentence.
 */
export type Verdict =
  | { readonly kind: "node"; readonly nodeId: NodeId }
  | { readonly kind: "stranger" | "no-node"; readonly reason: string };

export interface JudgeOptions {
  readonly ca: X509Certificate;
  /** Left out: whenever the certificate is valid. */
  readonly now?: Date;
}

/**
 * Judges the certificates that somebody sent, the own one first. The others only help to say what is wrong: a chain
 * is no way to the cluster CA.
 */
export function judgeCertificates(sent: readonly X509Certificate[], { ca, now }: JudgeOptions): Verdict {
  const [own, ...others] = sent;
  if (own === undefined) return { kind: "stranger", reason: "it sent no certificate" };
  if (own.raw.equals(ca.raw)) {
    return { kind: "no-node", reason: "it sent the cluster CA's own certificate, expected that of a node" };
  }
  if (!isSignedBy(own, ca)) return { kind: "stranger", reason: foreignReason(own, others, ca) };
  const time = now === undefined ? undefined : timeProblem(own, now);
  if (time !== undefined) return { kind: "stranger", reason: `its certificate ${time}` };
  const nodeId = nodeIdOf(own);
  return typeof nodeId === "string" ? { kind: "node", nodeId } : { kind: "no-node", ...nodeId };
}

/** What keeps a certificate from being a cluster CA's; undefined when nothing does. */
export function caProblem(ca: X509Certificate): string | undefined {
  if (!ca.ca) return `it is the certificate of ${quote(subjectOf(ca))}, which is no CA`;
  const type = keyType(ca);
  if (type !== "ed25519") return `its key is ${type}, expected Ed25519`;
  return isSignedBy(ca, ca) ? undefined : "it is not signed by itself, expected the CA at the root";
}

/** The one certificate of a PEM text. Throws ClusternetError with the reason alone. */
export function parseCertificate(text: string): X509Certificate {
  const blocks = text.match(/^-----BEGIN [A-Z0-9 ]+-----$/gm) ?? [];
  const certificates = blocks.filter((line) => line === "-----BEGIN CERTIFICATE-----").length;
  if (certificates !== 1 || blocks.length !== 1) {
    const found =
      blocks.length === 0
        ? "no PEM block"
        : `${blocks.length} PEM blocks, ${certificates} of them certificates`;
    throw new ClusternetError(`it has ${found}, expected exactly one certificate`);
  }
  try {
    return new X509Certificate(text);
  } catch (error) {
    throw new ClusternetError("its certificate cannot be decoded", { cause: error });
  }
}

/** Its subject as the library writes it, a line a part; empty without one, where Bun gives nothing at all. */
export function subjectOf(certificate: X509Certificate): string {
  const { subject }: { readonly subject?: string } = certificate;
  return subject ?? "";
}

function issuerOf(certificate: X509Certificate): string {
  const { issuer }: { readonly issuer?: string } = certificate;
  return issuer ?? "";
}

function isSignedBy(certificate: X509Certificate, ca: X509Certificate): boolean {
  if (issuerOf(certificate) !== subjectOf(ca) || keyType(ca) !== "ed25519") return false;
  try {
    return certificate.verify(ca.publicKey);
  } catch {
    // A signature of another kind than the key's, or one that cannot be read, is none of this CA.
    return false;
  }
}

/** "unknown" for a key that the library cannot read. */
function keyType(certificate: X509Certificate): string {
  try {
    return certificate.publicKey.asymmetricKeyType ?? "unknown";
  } catch {
    return "unknown";
  }
}

function foreignReason(
  own: X509Certificate,
  others: readonly X509Certificate[],
  ca: X509Certificate,
): string {
  const expected = `expected the cluster CA ${quote(subjectOf(ca))}`;
  const below = others.find((each) => each.ca && isSignedBy(each, ca));
  if (below !== undefined && issuerOf(own) === subjectOf(below)) {
    return `its certificate is signed by ${quote(subjectOf(below))}, a CA below the cluster CA, ${expected} itself`;
  }
  if (issuerOf(own) === subjectOf(ca)) {
    return `its certificate is signed by another CA of the same name, ${expected} of ${ca.validFrom}`;
  }
  if (issuerOf(own) === subjectOf(own))
    return `its certificate is signed by itself (${quote(subjectOf(own))}), ${expected}`;
  return `its certificate is signed by another CA, ${quote(issuerOf(own))}, ${expected}`;
}

/**
 * That it has expired or is not valid yet, as the end of a sentence about it; undefined while it is valid. Without the time
 * of the clock, or the same thing would be news at every try.
 */
export function timeProblem({ validFrom, validTo }: X509Certificate, now: Date): string | undefined {
  // Written so that a time that cannot be read is not valid.
  if (!(now.getTime() <= Date.parse(validTo))) return `expired on ${validTo}`;
  if (!(Date.parse(validFrom) <= now.getTime())) return `is not valid before ${validFrom}`;
  return undefined;
}

/** The node of a certificate that the cluster CA has signed, or why it is no node's. */
function nodeIdOf(certificate: X509Certificate): NodeId | { readonly reason: string } {
  if (certificate.ca) return { reason: "its certificate is that of a CA, expected that of a node" };
  const type = keyType(certificate);
  if (type !== "ed25519") return { reason: `the key of its certificate is ${type}, expected Ed25519` };
  const purposes = certificate.keyUsage ?? [];
  if (purposes.length !== 1 || purposes[0] !== purpose.serverAuth) {
    return {
      reason:
        purposes.length === 1 && purposes[0] === purpose.clientAuth
          ? "its certificate is a manager's (client auth only), expected a node's (server auth only)"
          : `its certificate is for ${purposes.join(", ") || "any use"}, expected for server auth only`,
    };
  }
  // Special characters come escaped or in quotes, so two names cannot look like one, nor one like two.
  const commonName = /^CN=([^\n]*)$/.exec(subjectOf(certificate))?.[1];
  const nodeId = commonName === undefined ? undefined : asNodeId(commonName);
  if (nodeId === undefined) {
    return {
      reason: `its certificate names ${quote(subjectOf(certificate))}, expected a node ID as common name`,
    };
  }
  const names = certificate.subjectAltName ?? "";
  if (names !== `DNS:${nodeId}`) {
    const found = names === "" ? "no DNS name" : `the names ${quote(names)}`;
    return {
      reason: `its certificate has ${found}, expected one DNS name equal to the common name ${quote(nodeId)}`,
    };
  }
  return nodeId;
}
