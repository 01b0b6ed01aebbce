/**
 * Files that survive a power loss: the old content or the new, whole, at any instant (C3).
 *
 * A text is written to a temporary file in the same directory, with its final mode before its first byte,
 * flushed, and only then given its name; the directory is flushed last, since a rename is not on the disk before
 * that. What a crash leaves is a temporary file that nobody reads; `removeLeftovers` takes it away at the next
 * start, or `down`. Nothing here follows a symbolic link when writing.
 *
 * A call that may wait for the disk is left to a thread, so that this program goes on meanwhile. When a file is
 * written the calls that the kernel answers from memory are made at once, since handing one over costs more than it does.
 */
import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  fsync,
  fsyncSync,
  lstatSync,
  openSync,
  unlinkSync,
  type BigIntStats,
} from "node:fs";
import { chmod, link, lstat, mkdir, open, readdir, rename, unlink, type FileHandle } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { promisify } from "node:util";
import { quotePath, type Problem } from "../core/problem.ts";
import { ClusternetError, SettingsError, isForbidden, isSystemError, systemReason } from "../errors.ts";
import type { Logger } from "../log.ts";

/** Mode of every file that may hold a secret. */
export const privateMode = 0o600;

/** Longest path that fits the address of a Unix socket: 108 bytes with the zero at the end. */
const maxSocketPathBytes = 107;

const temporaryName = /^\..+\.[0-9a-f]{16}\.clusternet-tmp$/;

/**
 * Path of a socket in the data directory. Throws SettingsError when it is too long for one: the kernel would cut it, or
 * refuse it with a message that names neither.
 */
export function socketPath(directory: string, name: string): string {
  const path = join(directory, `${name}.sock`);
  const bytes = Buffer.byteLength(path);
  if (bytes > maxSocketPathBytes) {
    throw new SettingsError(
      `Cannot use data directory ${quotePath(directory)}: the socket path in it has ${bytes} bytes, expected at most ${maxSocketPathBytes}`,
      { hint: "Choose a data directory with a shorter path" },
    );
  }
  return path;
}

/** What a directory is to whoever runs a command. */
export interface NamedDirectory {
  readonly what: string;
  /** Which flag says where it is. */
  readonly flag: string;
}

/** That of an agent, and that of a Curator. */
export const dataDirectoryName: NamedDirectory = { what: "data directory", flag: "--data-dir" };

/**
 * Makes a directory with mode 0700, and the directories above it, where they are missing. One that is there
 * stays as it is, readable or not. Throws SettingsError.
 */
export async function ensurePrivateDirectory(
  directory: string,
  { what, flag }: NamedDirectory = dataDirectoryName,
): Promise<void> {
  try {
    await mkdir(dirname(directory), { recursive: true });
    await mkdir(directory, { mode: 0o700 });
    // The umask may have taken something away from the mode.
    await chmod(directory, 0o700);
    await syncDirectory(dirname(directory));
  } catch (error) {
    if (isSystemError(error, "EEXIST") && (await isDirectory(directory))) return;
    const found = isSystemError(error, "EEXIST")
      ? "something other than a directory is there or above it"
      : systemReason(error);
    throw new SettingsError(`Cannot make ${what} ${quotePath(directory)}: ${found}`, {
      cause: error,
      hint: remedyOfDirectory(error, flag),
    });
  }
}

/** What to do where a directory, or a file in it, cannot be made or looked at; `flag` names another one. */
export function remedyOfDirectory(error: unknown, flag: string): string {
  if (isForbidden(error)) return `Run this as root, or choose a directory of this user's with ${flag}`;
  const cause = error instanceof ClusternetError ? error.cause : error;
  return ["ENOSPC", "EDQUOT"].some((code) => isSystemError(cause, code))
    ? "Make room"
    : `Choose another one with ${flag}, or make it by hand`;
}

async function isDirectory(path: string): Promise<boolean> {
  try {
    const handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
    await handle.close();
    return true;
  } catch (error) {
    // One that may not be read is a directory all the same; what comes next says so.
    return isSystemError(error, "EACCES");
  }
}

/**
 * Removes what a crash left half written in the directory; it may hold the private key. What cannot be removed is logged
 * and keeps nobody from anything. Call it only while holding the directory's lock.
 */
export async function removeLeftovers(directory: string, log: Pick<Logger, "warn">): Promise<void> {
  const tell = (place: Readonly<Record<string, string>>, error: unknown): void =>
    log.warn("Cannot remove what a crash may have left in the data directory", {
      ...place,
      reason: systemReason(error),
    });
  const names = await readdir(directory).catch((error: unknown) => {
    tell({ directory }, error);
    return [];
  });
  // One that stays keeps none of the others: each may hold the key.
  for (const path of names.filter((name) => temporaryName.test(name)).map((name) => join(directory, name))) {
    await removeIfThere(path).catch((error: unknown) => tell({ path }, error));
  }
}

/** What a file is to hold: a text, or its bytes in pieces. */
export type Content = string | readonly Uint8Array[];

/**
 * Replaces the file's content, or makes the file. Throws ClusternetError when it cannot, or when something other
 * than a regular file has that name; whatever was there is then untouched, and no temporary file stays. `onFlush` is called
 * when all has been handed to the kernel, and the longest wait, that for the disk, begins.
 */
export async function replaceFile(
  path: string,
  content: Content,
  mode: number,
  onFlush: () => void = () => {},
): Promise<FileStamp> {
  const name = async (temporary: string): Promise<void> => {
    refuseIrregular(path);
    await rename(temporary, path);
  };
  return await writeThrough(path, content, mode, { name, onFlush });
}

/**
 * Makes a file that was not there. False: something has that name already, and is untouched. Throws
 * ClusternetError when it cannot; then there is no file of that name, not even an empty one.
 */
export async function makeFile(path: string, text: string, mode: number): Promise<boolean> {
  let made = true;
  const name = async (temporary: string): Promise<void> => {
    // Unlike rename, link never takes the place of what is there: not even of a dangling symbolic link.
    try {
      await link(temporary, path);
    } catch (error) {
      if (!isSystemError(error, "EEXIST")) throw error;
      made = false;
    }
    await unlink(temporary);
  };
  await writeThrough(path, text, mode, { name, onFlush: () => {} });
  return made;
}

/** Tells one state of a file from another: any write by anybody, a new file, a new name and a new mode change it. */
export type FileStamp = string;

function stampOf(stats: BigIntStats): FileStamp {
  // The time of its last change, unlike that of its content, is nobody's to set.
  return [stats.dev, stats.ino, stats.size, stats.mtimeNs, stats.ctimeNs, stats.mode].join(":");
}

/** What is done on the way: the file gets its name, and somebody is told that its flush begins. */
interface Stations {
  readonly name: (temporary: string) => Promise<void>;
  readonly onFlush: () => void;
}

async function writeThrough(
  path: string,
  content: Content,
  mode: number,
  stations: Stations,
): Promise<FileStamp> {
  const random = crypto.getRandomValues(new Uint8Array(8)).toHex();
  const temporary = join(dirname(path), `.${basename(path)}.${random}.clusternet-tmp`);
  try {
    const stamp = await writeTemporary(temporary, content, mode, stations);
    await syncDirectory(dirname(path));
    return stamp;
  } catch (error) {
    await removeIfThere(temporary).catch(() => {
      // The first failure is the one to report, and a left temporary file harms nothing.
    });
    if (error instanceof ClusternetError) throw error;
    throw new ClusternetError(`Cannot write ${quotePath(path)}: ${systemReason(error)}`, { cause: error });
  }
}

/** Writes the file, gives it its name, and returns what it is known by under that one. */
async function writeTemporary(
  temporary: string,
  content: Content,
  mode: number,
  { name, onFlush }: Stations,
): Promise<FileStamp> {
  const { O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW } = constants;
  const handle = await open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
  try {
    // Whatever the umask is: nobody else reads the file before this, since it can only take away.
    fchmodSync(handle.fd, mode);
    await writeAll(handle, typeof content === "string" ? [Buffer.from(content)] : content);
    const flushed = handle.sync();
    onFlush();
    await flushed;
    await name(temporary);
    return stampOf(fstatSync(handle.fd, { bigint: true }));
  } finally {
    await handle.close();
  }
}

/** Linux takes so many pieces in one call (IOV_MAX). */
const maxPieces = 1_024;

/** A nearly full disk takes a part of a write before it refuses the next one. */
async function writeAll(handle: FileHandle, pieces: readonly Uint8Array[]): Promise<void> {
  let rest = pieces.filter(({ length }) => length > 0);
  while (rest.length > 0) {
    let { bytesWritten } = await handle.writev(rest.slice(0, maxPieces));
    let whole = 0;
    for (const { length } of rest) {
      if (length > bytesWritten) break;
      bytesWritten -= length;
      whole++;
    }
    const [first, ...others] = rest.slice(whole);
    rest = first === undefined ? [] : [first.subarray(bytesWritten), ...others];
  }
}

function refuseIrregular(path: string): void {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  if (stats === undefined || stats.isFile()) return;
  throw new ClusternetError(
    `Cannot write ${quotePath(path)}: it is ${nameOfKind(stats)}, expected a regular file`,
    {
      hint: "Remove it: the file is then made anew",
    },
  );
}

interface Kind {
  isDirectory(): boolean;
  isSymbolicLink(): boolean;
  isFIFO(): boolean;
  isSocket(): boolean;
}

function nameOfKind(stats: Kind): string {
  if (stats.isDirectory()) return "a directory";
  if (stats.isSymbolicLink()) return "a symbolic link";
  if (stats.isFIFO()) return "a named pipe";
  return stats.isSocket() ? "a socket" : "a device";
}

const flush = promisify(fsync);

async function syncDirectory(directory: string): Promise<void> {
  const descriptor = openDirectory(directory);
  try {
    await flush(descriptor);
  } catch (error) {
    if (!isUnflushable(error)) throw error;
  } finally {
    closeSync(descriptor);
  }
}

/**
 * Makes the names in a directory survive a power loss, and waits for the disk: for whoever must not give way meanwhile.
 * Throws what the system says.
 */
export function syncDirectoryNow(directory: string): void {
  const descriptor = openDirectory(directory);
  try {
    fsyncSync(descriptor);
  } catch (error) {
    if (!isUnflushable(error)) throw error;
  } finally {
    closeSync(descriptor);
  }
}

function openDirectory(path: string): number {
  return openSync(path, constants.O_RDONLY | constants.O_DIRECTORY);
}

/** Some file systems cannot flush a directory and say so in this way. */
function isUnflushable(error: unknown): boolean {
  return isSystemError(error, "EINVAL");
}

async function removeIfThere(path: string): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    if (!isSystemError(error, "ENOENT")) throw error;
  }
}

/** A file as it was read. */
export interface ReadFile {
  readonly text: string;
  /** Permission bits as they were found. */
  readonly mode: number;
  /** The mode was found open to others and set to 0600. */
  readonly closed: boolean;
  readonly modifiedAt: Date;
  readonly stamp: FileStamp;
}

export interface ReadOptions {
  /** A longer file is refused before any of it is read. */
  readonly maxBytes: number;
  /** When others may read or write the file, it is set to 0600 before it is read, where the file system lets us. */
  readonly closeToOthers?: boolean;
}

/**
 * Reads a regular file, undefined when nothing has that name. Throws ClusternetError whose message is the reason
 * alone ("it is a directory, expected a regular file"): the caller says which file and what for. Never waits, so a named
 * pipe hangs nothing.
 */
export async function readRegularFile(path: string, options: ReadOptions): Promise<ReadFile | undefined> {
  let handle: FileHandle;
  try {
    handle = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (error) {
    if (isSystemError(error, "ENOENT")) {
      if (!(await isThere(path))) return undefined;
      throw new ClusternetError("it is a symbolic link to nowhere, expected a regular file", {
        cause: error,
      });
    }
    if (isSystemError(error, "ENXIO")) {
      throw new ClusternetError("it is a socket, expected a regular file", { cause: error });
    }
    throw new ClusternetError(systemReason(error), { cause: error });
  }
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) throw new ClusternetError(`it is ${nameOfKind(stats)}, expected a regular file`);
    const { maxBytes, closeToOthers = false } = options;
    if (stats.size > maxBytes) {
      throw new ClusternetError(`it has ${stats.size} bytes, expected at most ${maxBytes}`);
    }
    const mode = stats.mode & 0o7777;
    const closed = closeToOthers && isOpenToOthers(mode) && (await tryChmod(handle));
    const text = await handle.readFile({ encoding: "utf8" });
    return {
      text,
      mode,
      closed,
      modifiedAt: stats.mtime,
      stamp: stampOf(await handle.stat({ bigint: true })),
    };
  } catch (error) {
    if (error instanceof ClusternetError) throw error;
    throw new ClusternetError(systemReason(error), { cause: error });
  } finally {
    await handle.close();
  }
}

/** True when the mode lets anybody but the owner do anything. */
export function isOpenToOthers(mode: number): boolean {
  return (mode & 0o077) !== 0;
}

/** `key-mode` for a file that holds a private key, when others could read it: `name` says which, like "Private key". */
export function modeProblems(name: string, file: Pick<ReadFile, "mode" | "closed">): readonly Problem[] {
  if (!isOpenToOthers(file.mode)) return [];
  const mode = file.mode.toString(8).padStart(4, "0");
  const now = file.closed ? "others can no longer read it" : "it is as it was";
  return [
    {
      kind: "key-mode",
      message: `${name} had mode ${mode}, expected 0600: the private key in it may have leaked; ${now}`,
    },
  ];
}

async function tryChmod(handle: FileHandle): Promise<boolean> {
  try {
    await handle.chmod(privateMode);
    return true;
  } catch (error) {
    // A file system that cannot be written, or another's file: the caller reports the mode in any case.
    if (!["EROFS", "EPERM"].some((code) => isSystemError(error, code))) throw error;
    return false;
  }
}

/** Whether anything has that name, a symbolic link to nowhere too. */
export async function isThere(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (error) {
    if (isSystemError(error, "ENOENT")) return false;
    throw error;
  }
}

/** What has that name now; undefined when nothing has, also where something on the way is no directory. Throws as lstat. */
export function lstatIfThere(path: string): BigIntStats | undefined {
  try {
    return lstatSync(path, { bigint: true, throwIfNoEntry: false });
  } catch (error) {
    if (isSystemError(error, "ENOTDIR")) return undefined;
    throw error;
  }
}

/** For commands that promise to change nothing. */
export interface LookOptions {
  /** False: a file that others could read is reported and stays as it is. Default true: it is set to 0600. */
  readonly closeToOthers?: boolean;
}

/** What a file is known by that holds what it was to hold. */
export interface Kept {
  readonly stamp: FileStamp;
  /** It had to be written. */
  readonly isNew: boolean;
}

/**
 * A file that this program alone keeps: remembers what it last wrote or read, so that the same is not written
 * again, unless the file was changed, replaced or removed by somebody meanwhile.
 */
export class KeptFile {
  readonly path: string;
  #last: { readonly content: Content; readonly stamp: FileStamp } | undefined;

  constructor(path: string) {
    this.path = path;
  }

  /** As `readRegularFile`, but a file that others could read is closed to them unless it is only to be looked at. */
  async read(maxBytes: number, { closeToOthers = true }: LookOptions = {}): Promise<ReadFile | undefined> {
    const file = await readRegularFile(this.path, { maxBytes, closeToOthers });
    this.#last = file === undefined ? undefined : { content: file.text, stamp: file.stamp };
    return file;
  }

  /** Makes the file hold this, mode 0600, where it does not already; `onFlush` as that of `replaceFile`. Throws ClusternetError. */
  async write(content: Content, onFlush?: () => void): Promise<Kept> {
    const last = this.#last;
    if (last !== undefined && isSameContent(last.content, content)) {
      // The pieces take the place of a text that was read: the next comparison then costs nothing.
      this.#last = { content, stamp: last.stamp };
      if (last.stamp === (await stampAt(this.path))) return { stamp: last.stamp, isNew: false };
    }
    const stamp = await replaceFile(this.path, content, privateMode, onFlush);
    this.#last = { content, stamp };
    return { stamp, isNew: true };
  }
}

/** Only pieces that are not the same arrays are looked into: of a large file nearly none. */
function isSameContent(a: Content, b: Content): boolean {
  if (typeof a === "string" || typeof b === "string") return a === b || bytesOf(a).equals(bytesOf(b));
  const shorter = Math.min(a.length, b.length);
  let from = 0;
  while (from < shorter && a[from] === b[from]) from++;
  let behind = 0;
  while (behind < shorter - from && a.at(-1 - behind) === b.at(-1 - behind)) behind++;
  return bytesOf(a.slice(from, a.length - behind)).equals(bytesOf(b.slice(from, b.length - behind)));
}

function bytesOf(content: Content): Buffer {
  return typeof content === "string" ? Buffer.from(content) : Buffer.concat(content);
}

/** The stamp of what has that name now; undefined when nothing can be found out. Never throws. */
export async function stampAt(path: string): Promise<FileStamp | undefined> {
  try {
    return stampOf(await lstat(path, { bigint: true }));
  } catch {
    // Whatever is wrong with the file: writing it anew mends it or says why not.
    return undefined;
  }
}

/**
 * Binds a Unix socket with mode 0600 from its first instant: `bind` must do it before it returns. A socket that a
 * dead process left is taken away first; call it only while holding the directory's lock. Throws ClusternetError
 * when something else has that name.
 */
export function bindPrivateSocket<T>(path: string, bind: () => T): T {
  const stats = lstatSync(path, { throwIfNoEntry: false });
  if (stats?.isSocket() === true) unlinkSync(path);
  else if (stats !== undefined) {
    const kind = stats.isFile() ? "a regular file" : nameOfKind(stats);
    throw new ClusternetError(
      `Cannot listen on socket ${quotePath(path)}: it is ${kind}, expected nothing or a socket`,
      { hint: "Remove it" },
    );
  }
  // The socket gets its mode from the umask, which belongs to the process: nothing may wait in between.
  const umask = process.umask(0o177);
  try {
    return bind();
  } finally {
    process.umask(umask);
  }
}
