/**
 * Writing to stdout and stderr at once and whole, with the file descriptors themselves.
 *
 * `process.stdout` and `console` may buffer, so that what was written just before the end is lost, and throw
 * EPIPE later and elsewhere. Here a reader that has gone away is an answer, and a stderr that is full or gone
 * costs the line: a log that cannot be written must not end or stop an agent.
 */
import { writeSync } from "node:fs";
import { ClusternetError, isSystemError } from "./errors.ts";

/** How long a full pipe of stderr may hold the program up, for each line. */
const stderrPatienceMs = 20;
const retryMs = 5;

/** Writes all of `text` on the descriptor. False: the reader has gone away. Throws ClusternetError for what else is in the way. */
export function writeStdout(text: string, descriptor = 1): boolean {
  try {
    return writeWhole(descriptor, text, Number.POSITIVE_INFINITY) !== "gone";
  } catch (error) {
    throw new ClusternetError("Cannot write on standard output", { cause: error });
  }
}

/**
 * A function that writes a line on the descriptor and never throws. Lines that could not be written are counted,
 * and the count is told in front of the next one that can.
 */
export function stderrWriter(descriptor = 2): (line: string) => void {
  let lost = 0;
  // A line that was cut must not run into the next one.
  let cut = false;
  return (line) => {
    const before = `${cut ? "\n" : ""}${lost > 0 ? `(${lost} lines could not be written)\n` : ""}`;
    let outcome: ReturnType<typeof writeWhole>;
    try {
      outcome = writeWhole(descriptor, before + line, stderrPatienceMs);
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

function writeWhole(descriptor: number, text: string, patienceMs: number): "all" | "part" | "none" | "gone" {
  const bytes = new TextEncoder().encode(text);
  let written = 0;
  let waitedMs = 0;
  while (written < bytes.length) {
    try {
      written += writeSync(descriptor, bytes, written);
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
