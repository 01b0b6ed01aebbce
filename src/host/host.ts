/**
 * This host's interface, routes and loopback addresses, kept as wanted.
 *
 * Reads what is there at the first apply, after a failure and after `invalidate`; else plans against a model of
 * it (C4.9). One call at a time: the caller (pull.ts) is a single loop.
 */
import type { SeenHost, Step, WantedHost } from "../core/host-plan.ts";
import type { Problem } from "../core/problem.ts";

export interface ApplyResult {
  /** Everything wanted holds, but for what `problems` names as left alone. */
  readonly complete: boolean;
  /** Steps that were carried out. */
  readonly done: readonly Step[];
  readonly problems: readonly Problem[];
  /** The host as known afterwards; absent when it could not be read. */
  readonly seen?: SeenHost;
}

export interface Host {
  /** Forgets the model: the next apply reads the host first. */
  invalidate(): void;
  /** Reads the host as it is now. Throws CommandError. */
  read(): Promise<SeenHost>;
  /** Makes the host as wanted, changing only what differs. Never throws for what the host refuses: that is a problem. */
  apply(wanted: WantedHost): Promise<ApplyResult>;
  /** The steps that `apply` would carry out, without doing any of them. */
  plan(wanted: WantedHost): Promise<ApplyResult>;
  /** Yields whenever the kernel tells of a change that may concern us (a hint, not a fact) until `signal` aborts. Never throws. */
  hints(signal: AbortSignal): AsyncIterable<void>;
}
