/**
 * `clusternet curator`: the small Curator of this project, until it is asked to stop.
 *
 * Takes options that are of the right form already (src/settings.ts parsed them) and decides what cannot be
 * used: that is thrown as a ClusternetError whose `exit` is the status to end with.
 */
import type { Prefix } from "../core/prefix.ts";
import type { ExitStatus } from "../errors.ts";
import type { Logger } from "../log.ts";

/** Flags of `clusternet curator`, parsed. */
export interface CuratorOptions {
  /** `host` as written, without the brackets of an IPv6 address; port 0 takes any free one. */
  readonly listen: { readonly host: string; readonly port: number };
  readonly dataDir: string;
  readonly store: "sqlite" | "memory";
  /** One per address family at most, at least one. */
  readonly clusterNets: readonly Prefix[];
  readonly insecure: boolean;
  readonly insecureAnywhere: boolean;
}

/** What a command gets from `main` besides its options. */
export interface CuratorContext {
  readonly log: Logger;
  /** Aborts when the command is asked to stop (SIGTERM, SIGINT). */
  readonly signal: AbortSignal;
}

/** Serves until `signal` aborts. Throws ClusternetError for what cannot be used. */
export async function runCurator(_options: CuratorOptions, _context: CuratorContext): Promise<ExitStatus> {
  throw new Error("unwritten");
}
