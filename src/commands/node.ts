/**
 * `clusternet node list`, `node remove ID` and `node allow ID`: speak with the Curator that runs on this machine,
 * through the Unix socket in its data directory. Without a running Curator they end with 69.
 */
import type { ExitStatus } from "../errors.ts";

/** Options of every `clusternet node` command, parsed. */
export interface NodeCommandOptions {
  /** The Curator's data directory; default as for `clusternet curator`. */
  readonly dataDir: string;
  /** Only `node list`: one JSON array instead of a table. */
  readonly json?: boolean;
}

/** What a command gets from `main` besides its options. */
export interface NodeCommandContext {
  /** Writes text on standard output as it is. */
  readonly stdout: (text: string) => void;
}

/** Prints every member and every removed node. */
export async function nodeList(
  _options: NodeCommandOptions,
  _context: NodeCommandContext,
): Promise<ExitStatus> {
  throw new Error("unwritten");
}

/** Takes a node out: it is told NOT_FOUND from then on. */
export async function nodeRemove(
  _options: NodeCommandOptions,
  _id: string,
  _context: NodeCommandContext,
): Promise<ExitStatus> {
  throw new Error("unwritten");
}

/** Lets a removed node in again. */
export async function nodeAllow(
  _options: NodeCommandOptions,
  _id: string,
  _context: NodeCommandContext,
): Promise<ExitStatus> {
  throw new Error("unwritten");
}
