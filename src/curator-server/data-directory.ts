/**
 * The Curator's data directory, held by one Curator at a time.
 *
 * The hold is a lock of the kernel's (flock), so it ends with the process however that ends; the process ID in
 * the file is for people.
 */
import { dlopen } from "bun:ffi";
import { closeSync, fsyncSync, ftruncateSync, mkdirSync, openSync, readFileSync, writeSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { ClusternetError, exitStatus, messageOf, SettingsError } from "../errors.ts";

export interface HeldDirectory {
  /** Absolute. */
  readonly path: string;
  release(): void;
}

const exclusiveNow = 2 | 4; // LOCK_EX | LOCK_NB of <sys/file.h>

/** Makes the directory (0700) when absent and holds it. Throws SettingsError, or exit 75 naming the process that holds it. */
export function holdDataDirectory(directory: string): HeldDirectory {
  const path = resolve(directory);
  let file: number;
  try {
    if (mkdirSync(path, { recursive: true, mode: 0o700 }) !== undefined) syncDirectory(dirname(path));
    file = openSync(join(path, "curator.lock"), "a+", 0o600);
  } catch (error) {
    throw new SettingsError(`Cannot use data directory "${path}": ${messageOf(error)}`, {
      cause: error,
      hint: "Run as a user that may write there, or choose another --data-dir",
    });
  }
  if (flock(file, exclusiveNow) !== 0) {
    closeSync(file);
    const holder = readFileSync(join(path, "curator.lock"), "utf8").trim();
    throw new ClusternetError(
      `Cannot start a Curator in "${path}": ${holder === "" ? "another one" : `process ${holder}`} holds it`,
      {
        hint: "One Curator runs per data directory: stop that one, or choose another --data-dir",
        exit: exitStatus.temporary,
      },
    );
  }
  ftruncateSync(file);
  writeSync(file, `${process.pid}\n`);
  return { path, release: () => closeSync(file) };
}

function flock(file: number, operation: number): number {
  const libc = dlopen("libc.so.6", { flock: { args: ["i32", "i32"], returns: "i32" } });
  try {
    return libc.symbols.flock(file, operation);
  } finally {
    libc.close();
  }
}

function syncDirectory(path: string): void {
  const directory = openSync(path, "r");
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}
