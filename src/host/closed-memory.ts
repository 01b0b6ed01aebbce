/**
 * Keeps the memory of this process, and with it the keys that it has read, from everybody but root.
 *
 * No core dump is written, by whatever signal it ends, and no other process of its own user may read it or trace it.
 * A program that is started takes the limit on core dumps over, wireguard-go among them, which has the interface's key
 * in its own memory; the rest the kernel gives back to it. What cannot be done is told and harms nothing else.
 */
import { openLibc, type Libc } from "./libc.ts";

const PR_SET_DUMPABLE = 4;
const RLIMIT_CORE = 4;

/**
 * One byte, which no core dump fits in. Zero would do for a file, but the kernel asks nobody's limit when core dumps
 * go to a program, as with systemd-coredump, except for a limit of one: that means no dump at all (core(5) leaves it
 * out; the kernel's fs/coredump.c has it).
 */
const noCore = { soft: 1n, hard: 1n } as const;
/** Where the limit is zero already, nobody but root may raise it to one. */
const noCoreFile = { soft: 0n, hard: 0n } as const;

/** Closes it. Returns a sentence for each thing that could not be done. */
export function closeMemory(
  libc: Pick<Libc, "prctl" | "setrlimit"> & Partial<Disposable> = openLibc(),
): readonly string[] {
  const dumpable = libc.prctl(PR_SET_DUMPABLE, 0);
  let core = libc.setrlimit(RLIMIT_CORE, noCore);
  if (core !== 0) core = libc.setrlimit(RLIMIT_CORE, noCoreFile);
  libc[Symbol.dispose]?.();
  return [
    ...(dumpable === 0
      ? []
      : [`Cannot close the memory of this process to others of its user: prctl errno ${dumpable}`]),
    ...(core === 0
      ? []
      : [`Cannot forbid core dumps of the programs that are started: setrlimit errno ${core}`]),
  ];
}
