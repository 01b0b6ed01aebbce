/**
 * Gives the pages of this program's own file back that have been mapped into its memory.
 *
 * A start touches far more of the executable than an agent that rests: what ran once stays mapped until memory is short,
 * and counts as this process' memory wherever somebody looks, in RSS as in the limit of a cgroup. Nothing is lost by
 * giving it back: the pages stay in the kernel's cache of the file, and those that are used again come back from there.
 * Only mappings are touched that cannot be written and never were, so that each page is as the file has it.
 */
import { readFileSync, readlinkSync } from "node:fs";
import { messageOf } from "../errors.ts";
import { openLibc, type Libc } from "./libc.ts";

const MADV_DONTNEED = 4;

/** A part of this process' memory. */
export interface MemoryRange {
  readonly start: number;
  readonly length: number;
}

/** What of a text of /proc/PID/smaps is mapped from this file, cannot be written, and is as the file has it. */
export function untouchedMappings(smaps: string, file: string): readonly MemoryRange[] {
  // Each mapping is a line "START-END PERMISSIONS OFFSET DEVICE INODE PATH" and lines "Name: value" behind it.
  return smaps.split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m).flatMap((mapping) => {
    const [head = "", ...fields] = mapping.split("\n");
    const [, start, end, path] = /^([0-9a-f]+)-([0-9a-f]+) r-[x-]p \S+ \S+ \d+ +(.+)$/.exec(head) ?? [];
    if (start === undefined || end === undefined || path !== file) return [];
    const isAsFile = ["Private_Dirty", "Anonymous", "Swap"].every((name) =>
      fields.some((line) => new RegExp(`^${name}: +0 kB$`).test(line)),
    );
    const from = Number.parseInt(start, 16);
    return isAsFile ? [{ start: from, length: Number.parseInt(end, 16) - from }] : [];
  });
}

/** What it is done with; each by default that of this process. */
export interface ProgramPagesParts {
  readonly libc?: Pick<Libc, "madvise"> & Partial<Disposable>;
  /** Text of /proc/self/smaps. */
  readonly readMappings?: () => string;
  /** Path of the executable, as the kernel has it. */
  readonly readProgram?: () => string;
}

/** Gives them back. Returns a sentence for each thing that could not be done, which harms nothing. */
export function giveBackProgramPages({
  libc = openLibc(),
  readMappings = () => readFileSync("/proc/self/smaps", "latin1"),
  readProgram = () => readlinkSync("/proc/self/exe", "latin1"),
}: ProgramPagesParts = {}): readonly string[] {
  try {
    return untouchedMappings(readMappings(), readProgram()).flatMap((range) => {
      const errno = libc.madvise(range.start, range.length, MADV_DONTNEED);
      return errno === 0 ? [] : [`Cannot give pages of the executable back: madvise errno ${errno}`];
    });
  } catch (error) {
    return [`Cannot find the pages of the executable: ${messageOf(error)}`];
  } finally {
    libc[Symbol.dispose]?.();
  }
}
