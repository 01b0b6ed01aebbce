/**
 * The Curator's store in one SQLite file, `curator.db` (sqlite-file.ts).
 *
 * SQLite goes on writing into a file that was deleted or replaced, without a word. So the names are compared with
 * what was opened around each commit: a database that is gone is made anew with everything in it, and one that somebody
 * put in its place is left alone, and nothing is kept until it is gone or this program starts with it.
 */
import { linkSync, unlinkSync } from "node:fs";
import { dirname } from "node:path";
import { quotePath } from "../core/problem.ts";
import { ClusternetError, isSystemError } from "../errors.ts";
import { syncDirectoryNow } from "../host/files.ts";
import { unusable, unwritten } from "./sqlite-error.ts";
import { identityOf, openFile, type OpenFile } from "./sqlite-file.ts";
import type { Kept, NodeStore, StoredChange, StoredState } from "./store.ts";

/** Opens the file, making it (mode 0600) when absent. Throws SettingsError. */
export function openSqliteStore(path: string): NodeStore {
  try {
    return new SqliteStore(path, openFile(path));
  } catch (error) {
    throw unusable(path, error);
  }
}

class SqliteStore implements NodeStore {
  readonly #path: string;
  #file: OpenFile;
  /** Of the database that is ours, open or not. */
  #identity: string | undefined;
  /** A change went in of which nobody could tell afterwards whether it is kept, so that it was refused. */
  #mayDiffer = false;
  /** Another process may have the file by then: it must not be opened again, let alone filled. */
  #closed = false;

  constructor(path: string, file: OpenFile) {
    this.#path = path;
    this.#file = file;
    this.#identity = file.identity;
  }

  /** Throws SettingsError; the file is closed then. */
  load(): StoredState {
    try {
      return this.#file.load();
    } catch (error) {
      this.close();
      throw unusable(this.#path, error);
    }
  }

  commit(changes: readonly StoredChange[], whole: () => StoredState): Kept {
    try {
      if (!this.#mayDiffer && this.#file.isInPlace()) {
        this.#file.commit(changes);
        this.#mayDiffer = true;
        // Looked at afterwards too: what went into a file that was taken away meanwhile is not kept.
        if (this.#file.isInPlace()) {
          this.#mayDiffer = false;
          return "in-place";
        }
      }
    } catch (error) {
      throw unwritten(this.#path, error);
    }
    return this.ensure(whole);
  }

  ensure(whole: () => StoredState): Kept {
    if (this.#closed) throw unwritten(this.#path, new Error("it is closed"));
    try {
      if (this.#file.isInPlace()) {
        if (this.#mayDiffer) this.#file.replaceAll(whole());
        this.#mayDiffer = false;
        return "in-place";
      }
      const found = identityOf(this.#path);
      if (found !== undefined && found !== this.#identity) throw replaced(this.#path);
      this.#writeAnew(whole(), found !== undefined);
      this.#mayDiffer = false;
      return "anew";
    } catch (error) {
      throw error instanceof ClusternetError ? error : unwritten(this.#path, error);
    }
  }

  #writeAnew(state: StoredState, isThere: boolean): void {
    // The one in use stays open until then: the number that it is known by could be that of somebody's next file.
    if (!isThere) this.#identity = makeFilled(this.#path, state);
    this.#file.close();
    // The rest also for a file that an earlier try has given its name.
    removeIfThere(temporaryOf(this.#path));
    syncDirectoryNow(dirname(this.#path));
    // Only its write-ahead log may have gone, and one made by an earlier try has missed changes since.
    const file = openFile(this.#path);
    try {
      file.replaceAll(state);
    } catch (error) {
      file.close();
      throw error;
    }
    this.#file = file;
  }

  close(): void {
    this.#closed = true;
    this.#file.close();
  }
}

function replaced(path: string): ClusternetError {
  return new ClusternetError(
    `Cannot use database ${quotePath(path)}: another file was put in place of the one in use`,
    {
      hint:
        "Nodes are told to try again: restart the Curator to go on from that file, or move it away and " +
        "everything is written into a new one",
    },
  );
}

/** What the file is called while it is made. */
function temporaryOf(path: string): string {
  return `${path}-new`;
}

/**
 * Makes the file, which gets its name only with all of the state in it: a crash leaves no empty one. Returns what it is known
 * by. Nothing that comes after its naming can fail; its other name is left to whoever comes next.
 */
function makeFilled(path: string, state: StoredState): string | undefined {
  const temporary = temporaryOf(path);
  // A log of a file that is gone would be taken for the new file's.
  for (const left of [temporary, `${temporary}-wal`, `${temporary}-shm`, `${path}-wal`, `${path}-shm`]) {
    removeIfThere(left);
  }
  const file = openFile(temporary);
  try {
    file.replaceAll(state);
    file.endLog();
  } finally {
    file.close();
  }
  // Unlike a renaming, this never takes the place of a file that is there.
  linkSync(temporary, path);
  return file.identity;
}

/** Not rmSync: where something on the way is no directory, that of Bun 1.4.5 says EFAULT. */
function removeIfThere(path: string): void {
  try {
    unlinkSync(path);
  } catch (error) {
    if (!isSystemError(error, "ENOENT")) throw error;
  }
}
