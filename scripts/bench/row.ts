/**
 * What a row of the benchmark is: two sides measured by turns in one run, and what the first must reach.
 */
import type { Aim } from "./statistics.ts";

export interface Sizes {
  /** Nodes of the large mesh; the small one is a tenth of it. */
  readonly nodes: number;
  /** Samples of each side. */
  readonly samples: number;
}

/** What a row has measured: the samples of both sides, in the row's unit. */
export interface Samples {
  readonly ours: readonly number[];
  readonly baseline: readonly number[];
  /** What else was seen, one sentence each. */
  readonly notes?: readonly string[];
}

export interface Row {
  /** The word that chooses it on the command line; several rows may have it. */
  readonly name: string;
  readonly ours: string;
  readonly baseline: string;
  readonly unit: "ms" | "kB" | "MB" | "replies";
  readonly aim: Aim;
  /** Waits more than it works, and asks for times of processors and not of walls: may run beside others of its kind. */
  readonly quiet?: true;
  readonly measure: (sizes: Sizes) => Promise<Samples>;
}
