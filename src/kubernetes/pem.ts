/**
 * Certificates and keys of a kubeconfig, from files or from its own text: decoded, and checked against each other and the
 * clock before a TLS library sees them, since that says nothing but that it failed.
 */
import { createPrivateKey, type KeyObject, X509Certificate } from "node:crypto";
import { quote, quotePath } from "../core/problem.ts";
import { ClusternetError, messageOf, SettingsError } from "../errors.ts";
import { readRegularFile } from "../host/files.ts";
import { subjectOf } from "../trust/certificate.ts";
import type { PemSource } from "./kubeconfig.ts";

/** A bundle of all CAs of the world has some two hundred kilobytes. */
const maxPemBytes = 1024 * 1024;

/** A certificate and its key. */
export interface Pair {
  readonly cert: string;
  readonly key: KeyObject;
  /** In quotes: the subject of the certificate, or the names that it has instead. */
  readonly name: string;
  /** When it is not valid yet. */
  readonly early?: SettingsError;
}

/** All certificates of the CA file. Throws SettingsError. */
export async function readCa(source: PemSource, origin: string): Promise<string> {
  const text = await readPem(source, origin);
  const blocks = certificateBlocks(text);
  if (blocks.length === 0)
    throw unusablePem(source, origin, "it has no certificate, expected a PEM file with one");
  for (const block of blocks) decodeCertificate(block, source, origin);
  return blocks.join("\n");
}

/** A certificate and its key, as `pairOf`. */
export async function readPair(
  certificate: PemSource,
  key: PemSource,
  origin: string,
  now: Date,
): Promise<Pair> {
  const certificateText = await readPem(certificate, origin);
  const keyText = await readPem(key, origin);
  return pairOf(certificate, certificateText, key, keyText, { origin, now });
}

/** Certificate, those sent along, and key; checked against each other, since TLS itself does not say what is wrong. Throws SettingsError. */
export function pairOf(
  certificate: PemSource,
  certificateText: string,
  key: PemSource,
  keyText: string,
  { origin, now }: { readonly origin: string; readonly now: Date },
): Pair {
  const blocks = certificateBlocks(certificateText);
  const [first] = blocks;
  if (first === undefined) {
    throw unusablePem(certificate, origin, "it has no certificate, expected a PEM file with one");
  }
  const own = decodeCertificate(first, certificate, origin);
  for (const other of blocks.slice(1)) decodeCertificate(other, certificate, origin);
  if (new Date(own.validTo) < now) {
    const hint = "Renew the certificate, or set the clock";
    throw unusablePem(certificate, origin, `it expired on ${own.validTo}`, hint);
  }
  const privateKey = decodeKey(keyText, key, origin);
  const name = quote(nameOf(own));
  if (!own.checkPrivateKey(privateKey)) {
    throw unusablePem(key, origin, `it is not the key of certificate ${name}`);
  }
  const pair = { cert: blocks.join("\n"), key: privateKey, name };
  if (new Date(own.validFrom) <= now) return pair;
  const reason = `it is not valid before ${own.validFrom}`;
  return { ...pair, early: unusablePem(certificate, origin, reason, "Set the clock, or wait until then") };
}

/** What it is called in one line. A certificate needs no subject; it may have names beside, or none at all. */
function nameOf(certificate: X509Certificate): string {
  const subject = subjectOf(certificate).replaceAll("\n", " ");
  return subject === "" ? (certificate.subjectAltName ?? "") : subject;
}

function certificateBlocks(text: string): readonly string[] {
  return text.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g) ?? [];
}

function decodeCertificate(block: string, source: PemSource, origin: string): X509Certificate {
  try {
    return new X509Certificate(block);
  } catch {
    throw unusablePem(source, origin, "a certificate in it cannot be decoded");
  }
}

/** The first private key of the text: kubelet keeps it behind its certificate in one file. */
function decodeKey(text: string, source: PemSource, origin: string): KeyObject {
  const [block] = text.match(/-----BEGIN ([A-Z ]*)PRIVATE KEY-----[^-]+-----END \1PRIVATE KEY-----/) ?? [];
  if (block === undefined)
    throw unusablePem(source, origin, "it has no private key, expected a PEM file with one");
  try {
    return createPrivateKey(block);
  } catch {
    // The library's error is left out on purpose: it may quote what it read.
    throw unusablePem(source, origin, "its private key cannot be decoded, expected one without a password");
  }
}

async function readPem(source: PemSource, origin: string): Promise<string> {
  if (source.kind === "data") return source.text;
  return (await readSmallFile(source.path, maxPemBytes, (reason) => unusablePem(source, origin, reason)))
    .text;
}

/** The text of a file that need not be ours. Throws what `fail` makes of the reason. */
export async function readSmallFile(
  path: string,
  maxBytes: number,
  fail: (reason: string) => ClusternetError,
): Promise<{ readonly text: string }> {
  let reason = "there is no such file";
  try {
    const file = await readRegularFile(path, { maxBytes });
    if (file !== undefined) return file;
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    reason = messageOf(error);
  }
  throw fail(reason);
}

function unusablePem(source: PemSource, origin: string, reason: string, hint?: string): SettingsError {
  const what = source.kind === "data" ? source.field : `${source.field} ${quotePath(source.path)}`;
  return new SettingsError(
    `Cannot use ${what} of the ${origin}: ${reason}`,
    hint === undefined ? {} : { hint },
  );
}
