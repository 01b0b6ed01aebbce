/**
 * Writing to stdout and stderr at once and whole, with the file descriptors themselves.
 *
 * `process.stdout` and `console` may buffer, so that what was written just before the end is lost, and throw
 * EPIPE later and elsewhere. Here a reader that has gone away is an answer, and a stderr that is full or gone
 * costs the line: a log that cannot be written must not end or stop an agent. A write to an ordinary pipe whose
 * reader has stopped reading waits for ever, so stderr is asked by poll(2) first whether there is room.
 */
import { readFileSync, writeSync } from "node:fs";
import { ClusternetError, isSystemError } from "./errors.ts";
import { openLibc, type Libc } from "./host/libc.ts";

const stdout = 1;
/** How long a full pipe of stderr may hold the program up, for each line. */
const stderrPatienceMs = 20;
const retryMs = 5;
/** A pipe that poll(2) calls writable takes this much without waiting (PIPE_BUF). */
const portionBytes = 4096;

/** Writes all of `text` on the descriptor. False: the reader has gone away. Throws ClusternetError for what else is in the way. */
export function writeStdout(text: string, descriptor = stdout): boolean {
  if (descriptor === stdout && text !== "" && isStandIn(descriptor)) {
    throw new ClusternetError("Cannot write on standard output: it is closed");
  }
  try {
    return writeWhole(descriptor, text, { patienceMs: Number.POSITIVE_INFINITY }) !== "gone";
  } catch (error) {
    throw new ClusternetError("Cannot write on standard output", { cause: error });
  }
}

/**
 * Whether this program was started without the descriptor: Bun then opens /dev/null in its place, where everything
 * would vanish. What was inherited can be no such thing, since close-on-exec would have closed it.
 */
function isStandIn(descriptor: number): boolean {
  const closeOnExec = 0o2000000;
  const flags = /^flags:\t([0-7]+)$/m.exec(readFileSync(`/proc/self/fdinfo/${descriptor}`, "utf8"))?.[1];
  return (Number.parseInt(flags ?? "0", 8) & closeOnExec) !== 0;
}

/**
 * A function that writes a line on the descriptor and never throws. Lines that could not be written are counted,
 * and the count is told in front of the next one that can.
 */
export function stderrWriter(descriptor = 2): (line: string) => void {
  let lost = 0;
  // A line that was cut must not run into the next one.
  let cut = false;
  const poll = writablePoll();
  return (line) => {
    const before = `${cut ? "\n" : ""}${lost > 0 ? `(${lost} lines could not be written)\n` : ""}`;
    let outcome: ReturnType<typeof writeWhole>;
    try {
      // The first line that finds no room waits for some; those after it must not add up.
      outcome = writeWhole(descriptor, before + line, { patienceMs: lost > 0 ? 0 : stderrPatienceMs, poll });
    } catch {
      // There is no other place to say it: a full disk or a closed descriptor costs the line.
      outcome = "none";
    }
    if (outcome === "all") {
      lost = 0;
      cut = false;
    } else {
      lost++;
      if (outcome === "part") cut = true;
    }
  };
}

/** Whether a write on the descriptor goes ahead at once, as far as it is known after `waitMs`. */
type Poll = (descriptor: number, waitMs: number) => boolean;

interface Patience {
  readonly patienceMs: number;
  /** Asked before each portion; without it a write may wait for its reader. */
  readonly poll?: Poll | undefined;
}

function writeWhole(
  descriptor: number,
  text: string,
  { patienceMs, poll }: Patience,
): "all" | "part" | "none" | "gone" {
  const bytes = new TextEncoder().encode(text);
  let written = 0;
  let waitedMs = 0;
  while (written < bytes.length) {
    if (poll !== undefined && !poll(descriptor, patienceMs)) return written > 0 ? "part" : "none";
    try {
      written += writeSync(
        descriptor,
        bytes,
        written,
        Math.min(bytes.length - written, poll === undefined ? bytes.length : portionBytes),
      );
    } catch (error) {
      if (isSystemError(error, "EINTR")) continue;
      if (isSystemError(error, "EPIPE")) return "gone";
      // A pipe that somebody else made non-blocking, and that is full.
      if (!isSystemError(error, "EAGAIN")) throw error;
      if (waitedMs >= patienceMs) return written > 0 ? "part" : "none";
      Bun.sleepSync(retryMs);
      waitedMs += retryMs;
    }
  }
  return "all";
}

/**
 * poll(2) of one descriptor for POLLOUT. An error or a reader that has gone counts as room: the write then says which.
 * A signal that cuts the wait short does not: a write would then wait for ever, and what the signal asks for with it.
 * Undefined where the C library cannot be called: a program that needs it more says so in its only line.
 */
function writablePoll(): Poll | undefined {
  const pollOut = 4;
  let libc: Libc;
  try {
    libc = openLibc();
  } catch {
    return undefined;
  }
  // struct pollfd: the descriptor, what is asked, what is answered.
  const entry = new Uint8Array(8);
  const view = new DataView(entry.buffer);
  return (descriptor, waitMs) => {
    view.setInt32(0, descriptor, true);
    view.setInt16(4, pollOut, true);
    view.setInt16(6, 0, true);
    return libc.poll(entry, waitMs) > 0;
  };
}
