/**
 * What the samples of a row come to: minimum, median, maximum, and the verdict against the aim.
 *
 * Medians are compared, since a machine that does other things as well makes some samples longer and none shorter.
 */

/** Samples of one side, summed up. */
export interface Summary {
  readonly min: number;
  readonly median: number;
  readonly max: number;
}

/** What a row must reach. */
export type Aim =
  /** Ours is at most so many times the baseline. */
  | { readonly kind: "ratio"; readonly most: number }
  /** Ours is at most so much more than the baseline. */
  | { readonly kind: "above"; readonly most: number }
  /** Ours is at most this; the baseline is there to compare with. */
  | { readonly kind: "plain"; readonly most: number }
  /** Nothing: the row is there to be read. */
  | { readonly kind: "none" };

export interface Comparison {
  readonly ours: Summary;
  readonly baseline: Summary;
  /** Ours by baseline, of the medians; undefined when the baseline is nothing. */
  readonly ratio: number | undefined;
  readonly met: boolean;
}

/** Throws when there is no sample. */
export function summarize(samples: readonly number[]): Summary {
  const sorted = samples.toSorted((a, b) => a - b);
  const half = sorted.length >> 1;
  const [min, high, max] = [sorted[0], sorted[half], sorted.at(-1)];
  if (min === undefined || high === undefined || max === undefined) {
    throw new Error("Cannot sum up a row: no sample, expected at least one");
  }
  const low = sorted[half - 1];
  return { min, median: sorted.length % 2 === 0 && low !== undefined ? (low + high) / 2 : high, max };
}

/** Compares the two sides of a row. */
export function compare(ours: readonly number[], baseline: readonly number[], aim: Aim): Comparison {
  const [mine, other] = [summarize(ours), summarize(baseline)];
  const ratio = other.median === 0 ? undefined : mine.median / other.median;
  return { ours: mine, baseline: other, ratio, met: isMet(mine.median, other.median, aim) };
}

function isMet(ours: number, baseline: number, aim: Aim): boolean {
  switch (aim.kind) {
    case "ratio":
      return ours <= baseline * aim.most;
    case "above":
      return ours <= baseline + aim.most;
    case "plain":
      return ours <= aim.most;
    case "none":
      return true;
  }
  return aim satisfies never;
}
