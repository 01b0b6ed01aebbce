/**
 * Runs the programs `wg`, `ip` and `wireguard-go`: the only place that starts a process.
 */

export interface CommandOptions {
  /** The program is ended after this time. Default 10 s. */
  readonly timeoutMs?: number;
  /** Exit codes that are no error. Default [0]. */
  readonly okCodes?: readonly number[];
}

/**
 * Runs a program with these arguments (never a shell) and returns what it wrote on standard output.
 * Throws CommandError: program not found in PATH, exit code, time limit; its stderr redacted.
 */
export type RunCommand = (argv: readonly string[], options?: CommandOptions) => Promise<string>;
