/**
 * What a process uses: its memory and its processor time, as the kernel counts them.
 *
 *     const before = await leastMemory(pid, () => Bun.sleep(10_000));
 *     …
 *     await memoryComesDownTo(pid, before + 10);
 *
 * The memory of an agent goes up and down with its garbage collector: after a flood it holds 25 MB that it gives back
 * up to twelve seconds later, while its live heap stays the same to the megabyte. So the least of a while is what it
 * needs, and what it must come back to is waited for. Both are of its own memory: pages of the executable are given
 * back and come again with what it happens to do (host/program-pages.ts), 25 MB of them, and none is ever a leak.
 */
import { readFileSync } from "node:fs";
import { waitFor } from "./wait.ts";

const lookEveryMs = 100;
/** Longer than memory takes to be given back. */
const giveBackMs = 25_000;

/** Resident, the most that it ever was, and what of it is the process' own and what pages of files. */
export type MemoryKind = "VmRSS" | "VmHWM" | "RssAnon" | "RssFile";

/** Memory in MB, of a million bytes each. */
export function memoryOf(pid: number, kind: MemoryKind = "VmRSS"): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  const kibibytes = new RegExp(`^${kind}:\\s+(\\d+) kB$`, "m").exec(status)?.[1];
  if (kibibytes === undefined) throw new Error(`Cannot read the memory of process ${pid}`);
  return (Number(kibibytes) * 1_024) / 1e6;
}

/** The least of its own memory, in MB, that is seen until `act` has ended. */
export async function leastMemory(pid: number, act: () => Promise<unknown>): Promise<number> {
  let least = memoryOf(pid, "RssAnon");
  const timer = setInterval(() => {
    least = Math.min(least, memoryOf(pid, "RssAnon"));
  }, lookEveryMs);
  try {
    await act();
  } finally {
    clearInterval(timer);
  }
  return least;
}

/** Waits until its own memory is that small, in MB, and returns it. */
export async function memoryComesDownTo(pid: number, megabytes: number): Promise<number> {
  return await waitFor(
    () => {
      const found = memoryOf(pid, "RssAnon");
      return found <= megabytes && found;
    },
    {
      limitMs: giveBackMs,
      everyMs: lookEveryMs,
      what: `memory of its own of ${megabytes.toFixed(1)} MB at most`,
      detail: () => `it is ${memoryOf(pid, "RssAnon").toFixed(1)} MB`,
    },
  );
}

/** What `work` gives, and for how many milliseconds it had the processor: nobody else's work counts, nor the helpers of the garbage collector. */
export function timed<T>(work: () => T): { readonly result: T; readonly processorMs: number } {
  const before = process.threadCpuUsage();
  const result = work();
  const { user, system } = process.threadCpuUsage(before);
  return { result, processorMs: (user + system) / 1_000 };
}

/** Processor time so far in ms: its "own", or with that of children that have ended. */
export function processorMsOf(pid: number, of: "own" | "all" = "all"): number {
  // The name in brackets may hold blanks.
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8")
    .replace(/^.*\) /s, "")
    .split(" ");
  // utime, stime, cutime and cstime, in hundredths of a second.
  return fields.slice(11, of === "own" ? 13 : 15).reduce((sum, each) => sum + Number(each), 0) * 10;
}
