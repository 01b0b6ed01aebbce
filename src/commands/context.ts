/**
 * What every command gets from `main` besides its settings.
 *
 * Commands return an exit status or throw; they never end the process, read argv or the environment, or
 * install signal handlers. So each of them can be run in a test as a plain function.
 */
import type { Clock } from "../async.ts";
import type { RedactingLogger } from "../log.ts";

export interface CommandContext {
  readonly log: RedactingLogger;
  /** Aborts when the process is asked to stop (SIGTERM, SIGINT). */
  readonly signal: AbortSignal;
  /** Writes to standard output, whole, before it returns. A reader that has gone away is no error. */
  readonly stdout: (text: string) => void;
  /** Standard output is a terminal. */
  readonly terminal: boolean;
  readonly clock: Clock;
}
