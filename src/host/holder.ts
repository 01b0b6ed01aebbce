/**
 * Who holds a directory or a Unix socket: looked up in /proc, and told in words.
 *
 * A process of another PID namespace is not seen there, nor, without the right to look into every process, the
 * descriptors of one of another user or of one that closes its memory as our own agents do. Of a directory the kernel's
 * list of locks then still tells; who holds a socket stays unnamed. Takes and changes nothing.
 */
import { readFileSync, readdirSync, readlinkSync, statSync, type BigIntStats } from "node:fs";
import { quote } from "../core/problem.ts";
import { isSystemError } from "../errors.ts";

/** Of a process that is being ended (linux/sched.h). */
const PF_EXITING = 0x4;

/** The process that holds a place, as far as it can be seen. */
export interface Holder {
  readonly pid?: number;
  /** Whose process it is, when it is not of our own user: anybody may hold the name of an interface. */
  readonly userId?: number;
  /** Its program and arguments, quoted and cut. */
  readonly commandLine?: string;
}

/** A process of which somebody gets no answer. */
export interface SilentProcess {
  readonly pid: number;
  /** Which process that is, in words. */
  readonly holder: string;
  /** It does nothing until somebody lets it go on (SIGSTOP, a debugger). */
  readonly isStopped: boolean;
}

/** Who holds the directory, as far as that can be seen. */
export function findHolderOf(dataDirectory: string): SilentProcess | undefined {
  return silentProcessOf(findDirectoryHolder(dataDirectory) ?? findLockHolder(dataDirectory));
}

/** Who serves a WireGuard interface in user space, as far as that can be seen; nobody does for one of the kernel's. */
export function findServerOf(interfaceName: string): SilentProcess | undefined {
  return silentProcessOf(findSocketHolder(`/run/wireguard/${interfaceName}.sock`));
}

function silentProcessOf(holder: Holder | undefined): SilentProcess | undefined {
  if (holder?.pid === undefined) return undefined;
  const { pid } = holder;
  return { pid, holder: describeHolder(holder), isStopped: /^State:\t[Tt] /m.test(statusOf(String(pid))) };
}

/** That it gives no answer that can be used, and what to do where that is known. */
export function describeSilence({ pid, holder, isStopped }: SilentProcess): string {
  return isStopped
    ? `${holder} is stopped: \`kill -CONT ${pid}\` lets it go on`
    : `${holder} runs, and gives no answer that can be used`;
}

/**
 * That it will soon hold nothing any more, or may not: it is being ended, or is nowhere to be seen. A process that was
 * killed gives back its memory before its locks, a large one in a good part of a second, and its descriptors are not
 * shown then.
 */
export function isPassing(holder: Holder | undefined): boolean {
  if (holder?.pid === undefined) return true;
  const pid = String(holder.pid);
  const status = statusOf(pid);
  const isKilled = /^S(?:ig|hd)Pnd:\t[0-9a-f]+[13579bdf][0-9a-f]{2}$/m.test(status);
  return status === "" || isKilled || /^State:\t[ZX] /m.test(status) || (flagsOf(pid) & PF_EXITING) !== 0;
}

/** Which process that is, in words. */
export function describeHolder(holder: Holder | undefined): string {
  if (holder?.pid === undefined) return "a process that cannot be seen from here";
  const user = holder.userId === undefined ? "" : ` of user ${holder.userId}`;
  return `process ${holder.pid}${user}${holder.commandLine === undefined ? "" : ` (${holder.commandLine})`}`;
}

/** The process with a lock on this directory, by its descriptors. */
export function findDirectoryHolder(path: string): Holder | undefined {
  const directory = statOf(path);
  if (directory === undefined) return undefined;
  return findProcess((descriptor) => isLocked(descriptor) && isSameFile(directory, statOf(descriptor)));
}

/** /proc/locks would be shorter, but on btrfs and overlayfs it names another device than stat does. */
function isLocked(descriptor: string): boolean {
  return /^lock:.*\bFLOCK\b/m.test(readFileSync(descriptor.replace("/fd/", "/fdinfo/"), "utf8"));
}

/** The directory that a process has a lock on. */
export function heldDirectoryOf(pid: number): string | undefined {
  const descriptor = findDescriptor(String(pid), isLocked);
  return descriptor === undefined ? undefined : whileThere(() => readlinkSync(descriptor));
}

/**
 * The holder of a lock that is known to be held, by the kernel's list. That names a file by its inode, and on btrfs and
 * overlayfs by another device than stat does: so the inode alone counts, and only when one lock fits.
 */
export function findLockHolder(path: string): Holder | undefined {
  const inode = statOf(path)?.ino;
  const pids = (whileThere(() => readFileSync("/proc/locks", "utf8")) ?? "").split("\n").flatMap((line) => {
    const [, pid, found] = /^\d+: FLOCK +\S+ +\S+ +(\d+) \S+:(\d+) /.exec(line) ?? [];
    return pid !== undefined && pid !== "0" && found === String(inode) ? [pid] : [];
  });
  const [pid] = pids;
  return pid === undefined || pids.length > 1
    ? undefined
    : { pid: Number(pid), ...userOf(pid), ...commandLineOf(pid) };
}

/** The process with a Unix socket in this network namespace whose path ends so; an abstract one has an "@" before its name. */
export function findSocketHolder(end: string): Holder | undefined {
  const line = unixSockets().find((each) => each.endsWith(end));
  if (line === undefined) return undefined;
  const inode = /^(?:\S+ +){6}(\d+) /.exec(line)?.[1];
  return findProcess((descriptor) => readlinkSync(descriptor) === `socket:[${inode}]`) ?? {};
}

/** Lines of the kernel's list of those of this network namespace. */
export function unixSockets(): readonly string[] {
  return (whileThere(() => readFileSync("/proc/self/net/unix", "utf8")) ?? "").split("\n");
}

/** The first process with a descriptor, given as /proc/PID/fd/N, for which `matches` holds. */
function findProcess(matches: (descriptor: string) => boolean): Holder | undefined {
  for (const pid of readdirSync("/proc")) {
    if (!/^\d+$/.test(pid) || findDescriptor(pid, matches) === undefined) continue;
    return { pid: Number(pid), ...userOf(pid), ...commandLineOf(pid) };
  }
  return undefined;
}

/** Processes and descriptors come and go while we look, and others' may be closed to us. */
function findDescriptor(pid: string, matches: (descriptor: string) => boolean): string | undefined {
  const descriptors = whileThere(() => readdirSync(`/proc/${pid}/fd`)) ?? [];
  return descriptors
    .map((fd) => `/proc/${pid}/fd/${fd}`)
    .find((descriptor) => whileThere(() => matches(descriptor)) === true);
}

function userOf(pid: string): Pick<Holder, "userId"> {
  // Not the owner of the directory: that of a process which has changed its user is root's.
  const effective = /^Uid:\t\d+\t(\d+)/m.exec(statusOf(pid))?.[1];
  return effective === undefined || Number(effective) === process.geteuid?.()
    ? {}
    : { userId: Number(effective) };
}

/** What the kernel says of a process; empty when it is gone. */
function statusOf(pid: string): string {
  return whileThere(() => readFileSync(`/proc/${pid}/status`, "utf8")) ?? "";
}

/** Bits of what the kernel does with a process. */
function flagsOf(pid: string): number {
  const stat = whileThere(() => readFileSync(`/proc/${pid}/stat`, "latin1")) ?? "";
  // The name, in brackets, may have anything in it.
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[6] ?? 0);
}

function commandLineOf(pid: string): Pick<Holder, "commandLine"> {
  const text = whileThere(() => readFileSync(`/proc/${pid}/cmdline`, "utf8")) ?? "";
  // One that is being ended has none left.
  return text === "" ? {} : { commandLine: quote(text.split("\0").join(" ").trim()) };
}

/** What a look at something finds that may be gone, or closed to us: undefined then. */
function whileThere<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch (error) {
    if (["ENOENT", "ENOTDIR", "ESRCH", "EACCES", "EPERM"].some((code) => isSystemError(error, code)))
      return undefined;
    throw error;
  }
}

/** undefined: it is not there, or closed to us. */
export function statOf(path: string): BigIntStats | undefined {
  return whileThere(() => statSync(path, { bigint: true }));
}

/** By device and inode. */
export function isSameFile(a: BigIntStats, b: BigIntStats | undefined): boolean {
  return b !== undefined && a.dev === b.dev && a.ino === b.ino;
}
