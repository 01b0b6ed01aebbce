/**
 * The three files by which a node is known and knows its cluster (C3): cluster CA, own certificate, its key.
 *
 * They are read anew for each connection, so that they can be replaced under a running agent; nothing here writes to
 * them. What is returned fits together: one certificate that is this node's, signed by that CA, and its key. No
 * message shows any of the key.
 */
import { createPrivateKey, type KeyObject, type X509Certificate } from "node:crypto";
import { stat } from "node:fs/promises";
import type { NodeId } from "../core/node.ts";
import { quotePath, type Problem } from "../core/problem.ts";
import { ClusternetError, messageOf, systemHint, SettingsError } from "../errors.ts";
import { isOpenToOthers, readRegularFile } from "../host/files.ts";
import type { RedactingLogger } from "../log.ts";
import type { CredentialFiles } from "./credential-files.ts";
import { caProblem, judgeCertificates, parseCertificate } from "./certificate.ts";

export interface Credentials {
  readonly ca: X509Certificate;
  readonly certificate: X509Certificate;
  /** Prints as what it is, never as what it holds. */
  readonly key: KeyObject;
  /** Common name of the certificate. */
  readonly nodeId: NodeId;
}

/** A certificate has some hundred bytes, one with a large RSA key some thousand. */
const maxPemBytes = 65_536;

/**
 * Reads and checks the credentials. Throws SettingsError that names the file. Whether the certificate is valid now is
 * not asked: a machine that boots with a wrong clock must not end for it, and the Curator asks it anyway.
 */
export async function readCredentials(files: CredentialFiles): Promise<Credentials> {
  // One after the other, so that the first one that is wrong is named, and not whichever was quickest.
  const ca = await readCertificate("cluster CA", files.ca);
  const certificate = await readCertificate("node certificate", files.cert);
  const { key } = await readKey("key of the node certificate", files.key);
  const found = caProblem(ca);
  if (found !== undefined) throw unusable("cluster CA", files.ca, found);
  const verdict = judgeCertificates([certificate], { ca });
  if (verdict.kind !== "node") {
    throw unusable("node certificate", files.cert, verdict.reason.replace(/^it sent/, "it is"));
  }
  if (!certificate.checkPrivateKey(key)) {
    throw unusable("key of the node certificate", files.key, `it is not the key of ${quotePath(files.cert)}`);
  }
  return { ca, certificate, key, nodeId: verdict.nodeId };
}

/**
 * `key-mode` as long as others may read this file with the key of a node certificate, which is not ours to change.
 * What cannot be looked at is told by whoever reads it.
 */
export async function openKeyProblems(path: string): Promise<readonly Problem[]> {
  const found = await stat(path).catch(() => undefined);
  if (found?.isFile() !== true || !isOpenToOthers(found.mode)) return [];
  const mode = (found.mode & 0o7777).toString(8).padStart(4, "0");
  return [
    {
      kind: "key-mode",
      message:
        `Key of the node certificate ${quotePath(path)} has mode ${mode}, expected 0600: others may read ` +
        "it and pose as this node; close it to them, and if somebody may have read it make credentials with a new key",
    },
  ];
}

/** What is to be done about a file. */
export interface PemRemedies {
  /** Where it cannot be read. */
  readonly unread: string;
  /** Where it is not what it should be. */
  readonly unfit: string;
}

const remediesOfNode: PemRemedies = {
  unread: "`clusternet pki issue` makes a node's three files; --ca, --cert and --key say where they are",
  unfit: "CA, certificate and key of a node belong together: take all three from the same place",
};

/** A PEM file's one certificate. Throws SettingsError; `what` names it in messages, `remedies` are by default a node's. */
export async function readCertificate(
  what: string,
  path: string,
  remedies: PemRemedies = remediesOfNode,
): Promise<X509Certificate> {
  const { text } = await readPem(what, path, remedies);
  try {
    return parseCertificate(text);
  } catch (error) {
    throw unusable(what, path, messageOf(error), { cause: error, remedies });
  }
}

/** A PEM file's one Ed25519 private key in PKCS#8. Throws as `readCertificate`, without any of the file's content. */
export async function readKey(
  what: string,
  path: string,
  remedies: PemRemedies = remediesOfNode,
): Promise<{ readonly key: KeyObject; readonly isOpen: boolean }> {
  const { text, mode } = await readPem(what, path, remedies);
  const expected = "expected one Ed25519 key in PKCS#8 (PRIVATE KEY)";
  if (text.match(/^-----BEGIN /gm)?.length !== 1 || !/^-----BEGIN PRIVATE KEY-----$/m.test(text)) {
    throw unusable(what, path, `it is no such PEM file, ${expected}`, { remedies });
  }
  let key: KeyObject;
  try {
    key = createPrivateKey(text);
  } catch {
    // The library's error is left out on purpose: it may quote what it read.
    throw unusable(what, path, `it cannot be decoded, ${expected}`, { remedies });
  }
  if (key.asymmetricKeyType !== "ed25519") {
    throw unusable(what, path, `its key is ${key.asymmetricKeyType ?? "unknown"}, ${expected}`, { remedies });
  }
  return { key, isOpen: isOpenToOthers(mode) };
}

/** No later line of the log shows the key, whatever somebody puts into a message. */
export function redactKey({ key }: Pick<Credentials, "key">, log: RedactingLogger): void {
  for (const line of secretLines(key)) log.redact(line);
}

/** The lines of its PEM text that nobody may see. */
export function secretLines(key: KeyObject): readonly string[] {
  return revealKey(key)
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("-----"));
}

/** The private key as TLS takes it. Call it only where it is handed to the TLS library or written to its file. */
export function revealKey(key: KeyObject): string {
  return key.export({ type: "pkcs8", format: "pem" });
}

async function readPem(
  what: string,
  path: string,
  { unread }: PemRemedies,
): Promise<{ readonly text: string; readonly mode: number }> {
  let reason = "there is no such file";
  let cause: unknown;
  try {
    const file = await readRegularFile(path, { maxBytes: maxPemBytes });
    if (file !== undefined) return { ...file, text: file.text.replaceAll("\r\n", "\n") };
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    reason = error.message;
    ({ cause } = error);
  }
  throw new SettingsError(`Cannot read ${what} ${quotePath(path)}: ${reason}`, {
    ...(cause === undefined ? {} : { cause }),
    hint: unread,
    ...systemHint(cause),
  });
}

function unusable(
  what: string,
  path: string,
  reason: string,
  { cause, remedies = remediesOfNode }: { readonly cause?: unknown; readonly remedies?: PemRemedies } = {},
): SettingsError {
  return new SettingsError(`Cannot use ${what} ${quotePath(path)}: ${reason}`, {
    ...(cause instanceof Error && cause.cause !== undefined ? { cause: cause.cause } : {}),
    hint: remedies.unfit,
  });
}
