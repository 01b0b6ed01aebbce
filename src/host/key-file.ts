/**
 * The node's WireGuard key on disk (C3): made once from the system's secure random source, never overwritten.
 *
 * A key file that cannot be used stays as it is: it may be all there is of a key that other nodes know. No message
 * shows any of its content. A key that is on disk is there whole, with mode 0600 from its first byte.
 */
import { parsePrivateKey, privateKeyFromBytes, type PrivateKey } from "../core/key.ts";
import { quotePath, type Problem } from "../core/problem.ts";
import {
  ClusternetError,
  SettingsError,
  isSystemError,
  messageOf,
  systemHint,
  systemReason,
} from "../errors.ts";
import { lstatIfThere, makeFile, modeProblems, privateMode, readRegularFile } from "./files.ts";

/** Name of the key file in the data directory. */
export const keyFileName = "private.key";

/** 44 characters and some white space at the end: more than this is no key. */
const maxKeyFileBytes = 4096;

const expected = "44 characters of base64";

export interface KeyFile {
  readonly key: PrivateKey;
  /** `key-mode`: others could read the file. */
  readonly problems: readonly Problem[];
}

/**
 * Reads the key and changes nothing; undefined when there is no file. Throws SettingsError when the file cannot be
 * used.
 */
export async function readKeyFile(path: string): Promise<KeyFile | undefined> {
  return await readKey(path, false);
}

/**
 * Reads the key, or makes one where there is none. A file that others may read is set back to mode 0600 and
 * reported. Throws SettingsError when the file cannot be used, or cannot be made, whatever is in the way; then there is
 * no file.
 */
export async function ensureKeyFile(path: string): Promise<KeyFile & { readonly made: boolean }> {
  const found = await readKey(path, true);
  if (found !== undefined) return { ...found, made: false };
  const key = privateKeyFromBytes(crypto.getRandomValues(new Uint8Array(32)));
  if (await makeKeyFile(path, key)) return { key, problems: [], made: true };
  // Another process made one since we looked: its key is the node's.
  const others = await readKey(path, true);
  if (others !== undefined) return { ...others, made: false };
  throw new ClusternetError(`Cannot make private key ${quotePath(path)}: somebody makes and removes it`);
}

/**
 * Writes the key of a running agent back when its file is gone. False: a file is there, whatever its content,
 * and is untouched. Throws as `ensureKeyFile`.
 */
export async function rewriteKeyFile(path: string, key: PrivateKey): Promise<boolean> {
  // Looked first: making it writes the key into a new file before it can find that there is one.
  return isThere(path) ? false : await makeKeyFile(path, key);
}

function isThere(path: string): boolean {
  try {
    return lstatIfThere(path) !== undefined;
  } catch (error) {
    throw new SettingsError(`Cannot look at private key ${quotePath(path)}: ${systemReason(error)}`, {
      cause: error,
      ...systemHint(error),
    });
  }
}

async function readKey(path: string, closeToOthers: boolean): Promise<KeyFile | undefined> {
  try {
    const file = await readRegularFile(path, { maxBytes: maxKeyFileBytes, closeToOthers });
    if (file === undefined) return undefined;
    return { key: parseKeyText(file.text), problems: modeProblems(`Private key ${quotePath(path)}`, file) };
  } catch (error) {
    throw new SettingsError(`Cannot use private key ${quotePath(path)}: ${messageOf(error)}`, {
      cause: error,
      // Somebody who may not read the key must not be told to remove it.
      hint: "Put the right key back, or remove the file to get a new key: other nodes will see this node's public key change",
      ...systemHint(error),
    });
  }
}

function parseKeyText(text: string): PrivateKey {
  const length = text.trimEnd().length;
  if (length === 0) throw new ClusternetError(`it is empty, expected ${expected}`);
  if (length !== 44) throw new ClusternetError(`it has ${length} characters, expected ${expected}`);
  return parsePrivateKey(text);
}

async function makeKeyFile(path: string, key: PrivateKey): Promise<boolean> {
  try {
    return await makeFile(path, `${key.reveal()}\n`, privateMode);
  } catch (error) {
    const cause = error instanceof ClusternetError ? error.cause : error;
    // One rule for a directory that may not be written and for one without room: without a key there is no start.
    throw new SettingsError(`Cannot make private key ${quotePath(path)}: ${systemReason(cause)}`, {
      cause,
      hint: ["ENOSPC", "EDQUOT"].some((code) => isSystemError(cause, code))
        ? "Make room; no key was written"
        : "Make the data directory writable, or put a key into it; no key was written",
    });
  }
}
