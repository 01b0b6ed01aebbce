/**
 * What a person is told when the Curator's database cannot be used: what was found, and what to do about it.
 *
 * Only content makes a file damaged. What the disk does not give, or a permission, or another program that holds the
 * file, is told as that: such a file is good, and whoever moved it away would let removed nodes in again. SQLite itself
 * does not tell the two apart: of a read that fails in the middle of its check, or brings less than there is, it says
 * that the pages are wrong. So a file is read once more before it is called damaged, which only a start does: to close a
 * file takes away all POSIX locks that this process has on it (fcntl(2)), and SQLite's are such locks, so the database must
 * be closed by then. A running Curator knows all that is in the file, and need not know what is the matter with it.
 */
import { SQLiteError } from "bun:sqlite";
import { closeSync, constants, fstatSync, openSync, readSync } from "node:fs";
import { quotePath } from "../core/problem.ts";
import { ClusternetError, diskHint, messageOf, SettingsError, systemReason } from "../errors.ts";

/** The file is there and can be read, and what is in it is not ours, or no longer. The message is the reason alone. */
export class ContentFault extends Error {
  /** What to do before the next start. */
  readonly remedy: string;

  constructor(message: string, remedy: string, cause?: unknown) {
    super(message, { cause });
    this.remedy = remedy;
  }
}

/** A check of SQLite, or a row that nobody can have written, says that the content is wrong: a failing disk looks like that too. */
export class ContentDoubt extends Error {}

/** `cause`: what is said against the content of the file. Never throws. */
function damageOf(path: string, cause: unknown): Error {
  return (
    readingFault(path, cause) ??
    new ContentFault(
      "it is damaged or no database",
      "Restore a backup, or move the file away and start anew: nodes that report their status come back by " +
        "themselves, but which nodes were removed and which keys were used is then forgotten",
      cause,
    )
  );
}

/** Why the file cannot be opened or read: for a start, which ends with it. The database must be closed. */
export function unusable(path: string, error: unknown): SettingsError {
  const fault = isAboutContent(error) ? damageOf(path, error) : error;
  if (fault instanceof ContentFault) {
    return new SettingsError(`Cannot use database ${quotePath(path)}: ${fault.message}`, {
      cause: fault.cause,
      hint: fault.remedy,
    });
  }
  return new SettingsError(`Cannot use database ${quotePath(path)}: ${reasonOf(path, fault)}`, {
    cause: fault,
    hint: `${remedyOf(fault)}, and start again: the file was left as it is`,
  });
}

/** Why a running Curator cannot keep anything now. */
export function unwritten(path: string, error: unknown): ClusternetError {
  const remedy = isAboutContent(error)
    ? "Look in the kernel's log (dmesg) for a disk that fails. If it is the file alone, move it away, and everything is " +
      "written into a new one"
    : error instanceof ContentFault
      ? "Move the file away, and everything is written into a new one"
      : remedyOf(error);
  return new ClusternetError(`Cannot write database ${quotePath(path)}: ${reasonOf(path, error)}`, {
    cause: error,
    hint: `${remedy}. Nodes are told to try again until then`,
  });
}

/** What to do about what the system, or SQLite, has found. */
const remedies: readonly (readonly [code: RegExp, remedy: string])[] = [
  [/^(ENOSPC|EDQUOT|SQLITE_FULL)/, "Make room on the disk"],
  [/^(EROFS|SQLITE_READONLY)/, "Make the disk and the file writable"],
  [
    /^(EACCES|EPERM)/,
    "Let the user who runs the Curator read, write and search the data directory, and read and write the files in it",
  ],
  [/^(ENOENT|ENOTDIR)/, "Put the data directory back: it is gone, or something else has its name"],
  [/^(SQLITE_BUSY|SQLITE_LOCKED)/, "Stop the other program that holds the file"],
  [/^(EIO|SQLITE_IOERR)/, diskHint],
];

function remedyOf(fault: unknown): string {
  const code = codeOf(fault);
  const found = remedies.find(([pattern]) => pattern.test(code));
  return (
    found?.[1] ??
    "Look for a full, failing or read-only disk, a missing permission, or another program that holds the file"
  );
}

function codeOf(fault: unknown): string {
  return fault instanceof Error && "code" in fault && typeof fault.code === "string" ? fault.code : "";
}

function reasonOf(path: string, fault: unknown): string {
  if (fault instanceof SQLiteError) return [fault.code, fault.message].filter(Boolean).join(": ");
  const reason = systemReason(fault);
  const other = fault instanceof Error && "path" in fault ? fault.path : undefined;
  return typeof other === "string" && other !== path ? `${quotePath(other)}: ${reason}` : reason;
}

function isAboutContent(error: unknown): boolean {
  return (
    error instanceof ContentDoubt ||
    /^SQLITE_(CORRUPT|NOTADB)/.test(error instanceof SQLiteError ? codeOf(error) : "")
  );
}

/** SQLITE_IOERR, in the low byte of the codes that a check names in its text. */
const ioError = 10;

/** What keeps the file from being read as it is; undefined when nothing does. */
function readingFault(path: string, cause: unknown): Error | undefined {
  const [, code] = /\berror code[= ](\d+)/.exec(messageOf(cause)) ?? [];
  if (code !== undefined && (Number(code) & 0xff) === ioError) {
    return Object.assign(new Error(`disk I/O error (${messageOf(cause)})`), {
      code: "SQLITE_IOERR",
    });
  }
  try {
    const { read, size } = readThrough(path);
    if (read >= size) return undefined;
    return Object.assign(new Error(`only ${read} of its ${size} bytes can be read`), { code: "EIO" });
  } catch (error) {
    return error instanceof Error ? error : undefined;
  }
}

/** How much of the file can be read, and how much there is. Throws what the system says. */
function readThrough(path: string): { readonly read: number; readonly size: number } {
  const descriptor = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const { size } = fstatSync(descriptor);
    const piece = new Uint8Array(1 << 20);
    let read = 0;
    for (let got; (got = readSync(descriptor, piece, 0, piece.length, read)) > 0;) read += got;
    return { read, size };
  } finally {
    closeSync(descriptor);
  }
}
