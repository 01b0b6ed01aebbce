/**
 * The errors that this program throws on purpose, and the one function that prints them.
 *
 * Another node's bad data is never thrown: it is a `Problem` (core/problem.ts). What is thrown is a
 * failed action of our own. Anything that reaches `main` and is not a ClusternetError is a bug and is
 * reported with its stack.
 */

import { escapeUnsafe } from "./core/printable.ts";

/**
 * Exit statuses, after sysexits(3), so that a unit file can say `RestartPreventExitStatus=64 78`.
 *
 * `temporary`: the same may well work later.
 */
export const exitStatus = {
  ok: 0,
  unexpected: 1,
  problems: 3,
  usage: 64,
  unavailable: 69,
  temporary: 75,
  settings: 78,
} as const;

/**
 * What each of them means, in the order of their numbers: what `--help` prints, and the README's table and the contract
 * repeat word for word.
 */
export const exitMeanings: readonly (readonly [ExitStatus, string])[] = [
  [exitStatus.ok, "done, or asked to stop"],
  [
    exitStatus.unexpected,
    "unexpected; standard output is closed or cannot be written; `down` could not take all of it away",
  ],
  [
    exitStatus.problems,
    "`status --check` found problems, no agent, or one that hangs; `--once` is done, but not all of this node is announced (`--dry-run`: would not be)",
  ],
  [exitStatus.usage, "wrong usage"],
  [
    exitStatus.unavailable,
    "a needed program or kernel feature is missing, the port is taken (`--once`, `--dry-run`, `curator`), or no Curator runs here (`node`)",
  ],
  [
    exitStatus.temporary,
    "`--once` ran out of time, also for a file that could not be written meanwhile (`--dry-run`: or would, for somebody else's interface); another agent holds the place (`run`, `down`); or the Curator cannot store the change (`node remove`, `node allow`)",
  ],
  [
    exitStatus.settings,
    "settings, credentials or key unusable, or there is no key and none can be written; no node of this ID (`node remove`, `node allow`)",
  ],
];

export type ExitStatus = (typeof exitStatus)[keyof typeof exitStatus];

export interface ErrorOptions {
  readonly cause?: unknown;
  readonly hint?: string;
  readonly exit?: ExitStatus;
}

/**
 * Base of every error this program throws on purpose.
 *
 * `message` says which action failed and what was found ("Cannot read …: …"); `hint`, when there is one,
 * says what the operator can do about it; `cause` keeps the error underneath; `exit` is the status with
 * which a command ends when nothing handles the error.
 */
export class ClusternetError extends Error {
  // A literal: the name of an anonymous subclass would be "Error", and minifying may rename classes.
  override readonly name: string = "ClusternetError";
  readonly hint: string | undefined;
  readonly exit: ExitStatus;

  constructor(message: string, options: ErrorOptions = {}) {
    super(message, "cause" in options ? { cause: options.cause } : undefined);
    this.hint = options.hint;
    this.exit = options.exit ?? exitStatus.unexpected;
  }
}

/** Wrong usage of the command line: one line, exit 64. */
export class UsageError extends ClusternetError {
  override readonly name = "UsageError";

  constructor(message: string, options: Omit<ErrorOptions, "exit"> = {}) {
    super(message, { ...options, exit: exitStatus.usage });
  }
}

/** A setting, key or credential of the right form that cannot be used: exit 78. */
export class SettingsError extends ClusternetError {
  override readonly name = "SettingsError";

  constructor(message: string, options: Omit<ErrorOptions, "exit"> = {}) {
    super(message, { ...options, exit: exitStatus.settings });
  }
}

/** A program that ran and did not succeed. `stderr` is redacted already. */
export class CommandError extends ClusternetError {
  override readonly name = "CommandError";
  readonly argv: readonly string[];
  /** Exit status of the program; undefined when it was ended by the time limit. */
  readonly exitCode: number | undefined;
  readonly stderr: string;

  constructor(
    message: string,
    options: ErrorOptions & { argv: readonly string[]; exitCode?: number; stderr?: string },
  ) {
    super(message, options);
    this.argv = options.argv;
    this.exitCode = options.exitCode;
    this.stderr = options.stderr ?? "";
  }
}

/** A call that a Curator answered with an error, or that did not reach it. `code` is the gRPC status number. */
export class CuratorError extends ClusternetError {
  override readonly name = "CuratorError";
  readonly code: number;
  /** What the Curator said, made harmless; the message when nothing is known but that. */
  readonly details: string;
  /** It was this node that refused: the Curator's certificate is not what it must be. */
  readonly untrusted: boolean;

  constructor(
    message: string,
    options: ErrorOptions & { code: number; details?: string; untrusted?: boolean },
  ) {
    super(message, options);
    this.code = options.code;
    this.details = options.details ?? message;
    this.untrusted = options.untrusted ?? false;
  }
}

/** Message of anything that was thrown, in one line, without its causes. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** What the system said, without the call and path that Node puts behind it: "ENOSPC: no space left on device". */
export function systemReason(error: unknown): string {
  return messageOf(error).replace(/, \w+(?: '.*')?$/s, "");
}

/**
 * Prints an error with its causes and hints, one a line. A cause is left out where the message above it ends with the
 * same words, and what the system said also when only its path is missing there, which may be that of a temporary file
 * and another one at each try.
 *
 *     Cannot read interface "nope0"
 *       because: Cannot run "ip link show nope0": exit code 1: Device "nope0" does not exist.
 *       hint: Create it first
 *
 * A cause may be another library's, with foreign text in it as it came: whatever a terminal would obey is escaped.
 */
export function describeError(error: unknown): string {
  const lines: string[] = [];
  const hints: string[] = [];
  for (let each: unknown = error, depth = 0; each !== undefined && depth < 8; depth++) {
    if (!isTold(each, lines.at(-1)))
      lines.push(depth === 0 ? messageOf(each) : `  because: ${messageOf(each)}`);
    if (each instanceof ClusternetError && each.hint !== undefined) hints.push(`  hint: ${each.hint}`);
    each = each instanceof Error ? each.cause : undefined;
  }
  return [...lines, ...hints].map(escapeUnsafe).join("\n");
}

function isTold(cause: unknown, above: string | undefined): boolean {
  if (above === undefined) return false;
  const isOfSystem = cause instanceof Error && "code" in cause;
  return above.endsWith(messageOf(cause)) || (isOfSystem && above.endsWith(systemReason(cause)));
}

/** An error, its causes and hints in one line: for a problem's message. */
export function describeInLine(error: unknown): string {
  return describeError(error)
    .split("\n")
    .map((line) => line.trim())
    .join("; ");
}

/** True for an error of the system with this code, like ENOENT. */
export function isSystemError(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}

/** True for an error of the system that says that this user may not, or for one with such a cause. */
export function isForbidden(error: unknown): boolean {
  return ["EACCES", "EPERM"].some((code) => isSystemError(causeOf(error), code));
}

/** The system's error below one of ours. */
function causeOf(error: unknown): unknown {
  return error instanceof ClusternetError ? error.cause : error;
}

/** What to do where this process may open no more files; it is not the file's fault. */
export const openFilesHint =
  "Raise this process' limit of open files: `ulimit -n` in a shell, LimitNOFILE= in a unit of systemd";

/** What to do where the disk does not give what is on it; the file may be good. */
export const diskHint = "Look in the kernel's log (dmesg) for a disk that fails or has become read-only";

/**
 * What to do about a file or directory that exists already and that this user may not use, that the disk does not give, or
 * that cannot be opened beside so many others; nothing for other errors.
 */
export function systemHint(error: unknown): Pick<ErrorOptions, "hint"> {
  if (isForbidden(error)) return { hint: "Run this as root, or as the user who owns it" };
  if (isSystemError(causeOf(error), "EIO")) return { hint: diskHint };
  return isSystemError(causeOf(error), "EMFILE") ? { hint: openFilesHint } : {};
}
