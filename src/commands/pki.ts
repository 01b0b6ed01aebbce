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
import { shellCommand } from "../core/printable.ts";
import { quotePath } from "../core/problem.ts";
import {
  ClusternetError,
  exitStatus,
  systemHint,
  SettingsError,
  systemReason,
  type ExitStatus,
} from "../errors.ts";
import {
  ensurePrivateDirectory,
  isThere,
  makeFile,
  privateMode,
  remedyOfDirectory,
  type NamedDirectory,
} from "../host/files.ts";
import type { Logger } from "../log.ts";
import { caProblem } from "../trust/certificate.ts";
import { credentialNames } from "../trust/credential-files.ts";
import { type PemRemedies, readCertificate, readKey, revealKey } from "../trust/credentials.ts";
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

const caDirectory: NamedDirectory = { what: "directory of the cluster CA", flag: "--ca-dir" };
const outDirectory: NamedDirectory = { what: "directory of the credentials", flag: "--out" };

const remediesOfCa: PemRemedies = {
  unread: "--ca-dir says where `clusternet pki init` made the CA",
  unfit: "CA and key belong together: put back the two files that `clusternet pki init` made",
};

/** The CA's own key, which stays where it was made. */
const caKeyName = "ca-key.pem";
/** Certificates are shown to everybody who connects. */
const publicMode = 0o644;

/** Makes a cluster CA. Throws SettingsError when there is one, or the directory cannot be used. */
export async function pkiInit({ caDir }: PkiInitOptions, { stdout }: PkiContext): Promise<ExitStatus> {
  await ensurePrivateDirectory(caDir, caDirectory);
  const { certificate, key } = makeClusterCa(new Date());
  await makeFiles(
    caDir,
    { what: "cluster CA", named: caDirectory, remedyOf: (found) => remedyOfCa(caDir, found) },
    [
      { name: caKeyName, text: revealKey(key), mode: privateMode },
      { name: credentialNames.ca, text: pemOf(certificate), mode: publicMode },
    ],
  );
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
  await ensurePrivateDirectory(out, outDirectory);
  if ((await namesIn(out, [caKeyName])).length > 0) {
    throw new SettingsError(
      `Cannot make credentials in ${quotePath(out)}: it is the directory of a cluster CA, it has ${caKeyName}`,
      { hint: "Choose another directory with --out: that key belongs to no node" },
    );
  }
  const { certificate, key } = makeNodeCertificate(nodeId, ca, new Date());
  await makeFiles(out, { what: "credentials", named: outDirectory, remedyOf: remedyOfCredentials }, [
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
  const found = { there: await namesIn(caDir, caNames) };
  for (const [what, name] of [
    ["cluster CA", credentialNames.ca],
    ["key of the cluster CA", caKeyName],
  ] as const) {
    if (found.there.includes(name)) continue;
    throw new SettingsError(`Cannot read ${what} ${quotePath(join(caDir, name))}: there is no such file`, {
      hint: remedyOfCa(caDir, found),
    });
  }
  const certificate = await readCertificate("cluster CA", path, remediesOfCa);
  const { key, isOpen } = await readKey("key of the cluster CA", keyPath, remediesOfCa);
  if (isOpen)
    log.warn("Others may read the key of the cluster CA, and make nodes with it", { file: keyPath });
  const problem = caProblem(certificate);
  const hint = remediesOfCa.unfit;
  if (problem !== undefined) {
    throw new SettingsError(`Cannot use cluster CA ${quotePath(path)}: ${problem}`, { hint });
  }
  if (!certificate.checkPrivateKey(key)) {
    throw new SettingsError(`Cannot use key ${quotePath(keyPath)}: it is not the key of ${quotePath(path)}`, {
      hint,
    });
  }
  return { certificate, key };
}

interface NewFile {
  readonly name: string;
  readonly text: string;
  readonly mode: number;
}

/** Names of files that belong together, as far as they are there. */
interface Found {
  readonly there: readonly string[];
}

const caNames = [caKeyName, credentialNames.ca];
const nothingOverwritten = "Nothing is overwritten: choose another directory, or move away what is there";

async function namesIn(directory: string, names: readonly string[]): Promise<readonly string[]> {
  try {
    const there = await Promise.all(names.map((name) => isThere(join(directory, name))));
    return names.filter((_name, index) => there[index]);
  } catch (error) {
    throw new SettingsError(`Cannot look into directory ${quotePath(directory)}: ${systemReason(error)}`, {
      cause: error,
      ...systemHint(error),
    });
  }
}

/**
 * What to do about a CA that is not all there. A key alone is what an interrupted `pki init` leaves, but also what is
 * left of a CA that nodes were made with, so it is not ours to go on from either.
 */
function remedyOfCa(caDir: string, { there }: Found): string {
  const [keyIsThere, certificateIsThere] = caNames.map((name) => there.includes(name));
  if (keyIsThere === certificateIsThere) {
    return keyIsThere === true
      ? nothingOverwritten
      : `${shellCommand(["clusternet", "pki", "init", "--ca-dir", caDir])} makes a cluster CA`;
  }
  return keyIsThere === true
    ? `If an earlier \`pki init\` was interrupted, remove ${caKeyName} and run it again; if nodes were made with that key, put a copy of ${credentialNames.ca} back, which each of them has`
    : `The key of a CA stays where \`pki init\` made it: go there, or put ${caKeyName} back`;
}

function remedyOfCredentials({ there }: Found): string {
  return there.length === Object.keys(credentialNames).length
    ? nothingOverwritten
    : `If an earlier \`pki issue\` was interrupted, remove ${there.join(" and ")} and run it again: nobody knows that key yet`;
}

/** Makes all of the files or none. `remedyOf` says what to do about those that are there. */
async function makeFiles(
  directory: string,
  {
    what,
    named,
    remedyOf,
  }: {
    readonly what: string;
    readonly named: NamedDirectory;
    readonly remedyOf: (found: Found) => string;
  },
  files: readonly NewFile[],
): Promise<void> {
  const taken = (name: string, without: string, hint: string): SettingsError =>
    new SettingsError(
      `Cannot make ${what} in ${quotePath(directory)}: ${quotePath(join(directory, name))} is there already${without}`,
      { hint },
    );
  const names = files.map(({ name }) => name);
  const there = await namesIn(directory, names);
  const [first] = there;
  if (first !== undefined) {
    const missing = names.filter((name) => !there.includes(name));
    throw taken(first, missing.length === 0 ? "" : `, without ${missing.join(" and ")}`, remedyOf({ there }));
  }
  const made: string[] = [];
  try {
    for (const { name, text, mode } of files) {
      const path = join(directory, name);
      // Somebody else can have been quicker.
      if (!(await makeFile(path, text, mode))) throw taken(name, "", nothingOverwritten);
      made.push(path);
    }
  } catch (error) {
    for (const path of made) await unlink(path);
    if (error instanceof SettingsError || !(error instanceof ClusternetError)) throw error;
    const { message, cause } = error;
    throw new SettingsError(message, { cause, hint: remedyOfDirectory(error, named.flag) });
  }
}

/** The library ends its text without a line end. */
function pemOf(certificate: X509Certificate): string {
  return `${certificate.toString().trimEnd()}\n`;
}
