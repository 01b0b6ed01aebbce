/**
 * `clusternet pki init` and `pki issue NODE-ID`: a cluster CA in a directory, and the three files by which a node is
 * known, ready to be copied.
 *
 * Never overwrites: what is there stays, and nothing is made beside it. Key files have mode 0600 from their first byte.
 */
import type { X509Certificate } from "node:crypto";
import { unlink } from "node:fs/promises";
import { join } from "node:path";
import type { NodeId } from "../core/node.ts";
import { quote } from "../core/problem.ts";
import { exitStatus, SettingsError, type ExitStatus } from "../errors.ts";
import { ensureDataDirectory, isThere, makeFile, privateMode } from "../host/files.ts";
import type { Logger } from "../log.ts";
import { caProblem } from "../trust/certificate.ts";
import { credentialNames } from "../trust/credential-files.ts";
import { readCertificate, readKey, revealKey } from "../trust/credentials.ts";
import { makeClusterCa, makeNodeCertificate, type KeyedCertificate } from "../trust/make-certificate.ts";

export interface PkiInitOptions {
  readonly caDir: string;
}

export interface PkiIssueOptions extends PkiInitOptions {
  /** Where the node's files go. */
  readonly out: string;
}

/** What a command gets from `main` besides its options. */
export interface PkiContext {
  readonly log: Logger;
  /** Writes text on standard output as it is. */
  readonly stdout: (text: string) => void;
}

/** The CA's own key, which stays where it was made. */
const caKeyName = "ca-key.pem";
/** Certificates are shown to everybody who connects. */
const publicMode = 0o644;

/** Makes a cluster CA. Throws SettingsError when there is one, or the directory cannot be used. */
export async function pkiInit({ caDir }: PkiInitOptions, { stdout }: PkiContext): Promise<ExitStatus> {
  await ensureDataDirectory(caDir);
  const { certificate, key } = makeClusterCa(new Date());
  await makeFiles(caDir, "cluster CA", [
    { name: caKeyName, text: revealKey(key), mode: privateMode },
    { name: credentialNames.ca, text: pemOf(certificate), mode: publicMode },
  ]);
  stdout(
    `Made a cluster CA in ${caDir}\n` +
      `${caKeyName} makes nodes of this cluster: keep it on this machine, and a copy in a safe place\n`,
  );
  return exitStatus.ok;
}

/** Makes a node's credentials. Throws SettingsError when there are some, or the CA cannot be used. */
export async function pkiIssue(
  { caDir, out }: PkiIssueOptions,
  nodeId: NodeId,
  { log, stdout }: PkiContext,
): Promise<ExitStatus> {
  const ca = await readCa(caDir, log);
  await ensureDataDirectory(out);
  const { certificate, key } = makeNodeCertificate(nodeId, ca, new Date());
  await makeFiles(out, "credentials", [
    { name: credentialNames.key, text: revealKey(key), mode: privateMode },
    { name: credentialNames.cert, text: pemOf(certificate), mode: publicMode },
    { name: credentialNames.ca, text: pemOf(ca.certificate), mode: publicMode },
  ]);
  stdout(
    `Made ${Object.values(credentialNames).join(", ")} of node ${nodeId} in ${out}\n` +
      "Put them into credentials/ in the data directory of that node, and leave no copy of the key\n",
  );
  return exitStatus.ok;
}

async function readCa(caDir: string, log: Logger): Promise<KeyedCertificate> {
  const path = join(caDir, credentialNames.ca);
  const keyPath = join(caDir, caKeyName);
  const certificate = await readCertificate("cluster CA", path);
  const { key, isOpen } = await readKey("key of the cluster CA", keyPath);
  if (isOpen)
    log.warn("Others may read the key of the cluster CA, and make nodes with it", { file: keyPath });
  const found = caProblem(certificate);
  if (found !== undefined) throw new SettingsError(`Cannot use cluster CA ${quote(path)}: ${found}`);
  if (!certificate.checkPrivateKey(key)) {
    throw new SettingsError(`Cannot use key ${quote(keyPath)}: it is not the key of ${quote(path)}`);
  }
  return { certificate, key };
}

interface NewFile {
  readonly name: string;
  readonly text: string;
  readonly mode: number;
}

/** Makes all of the files or none. */
async function makeFiles(directory: string, what: string, files: readonly NewFile[]): Promise<void> {
  const taken = (path: string): SettingsError =>
    new SettingsError(`Cannot make ${what} in ${quote(directory)}: ${quote(path)} is there already`, {
      hint: "Nothing is overwritten: choose another directory, or move away what is there",
    });
  for (const { name } of files) {
    const path = join(directory, name);
    if (await isThere(path)) throw taken(path);
  }
  const made: string[] = [];
  try {
    for (const { name, text, mode } of files) {
      const path = join(directory, name);
      // Somebody else can have been quicker.
      if (!(await makeFile(path, text, mode))) throw taken(path);
      made.push(path);
    }
  } catch (error) {
    for (const path of made) await unlink(path);
    throw error;
  }
}

/** The library ends its text without a line end. */
function pemOf(certificate: X509Certificate): string {
  return `${certificate.toString().trimEnd()}\n`;
}
