/**
 * The rows that measure our Curator beside a server that streams ready bytes.
 */
import type { Row, Samples, Sizes } from "./row.ts";
import { twoCrowds } from "./crowd.ts";

/** One node changes: from the call that says so to the last watcher. Ours also stores the change before. */
async function measureChange(watchers: number, samples: number): Promise<Samples> {
  await using crowds = await twoCrowds(watchers, 2);
  const sides = [crowds.ours, crowds.baseline];
  for (const crowd of sides) await crowd.open(watchers);
  const times: number[][] = [[], []];
  const answers: number[] = [];
  for (let round = 0; round <= samples; round++) {
    for (const [side, crowd] of sides.entries()) {
      const { lastMs, answerMs } = await crowd.change(watchers);
      if (round === 0) continue;
      times[side]?.push(lastMs);
      if (side === 0) answers.push(answerMs);
    }
  }
  const [ours = [], baseline = []] = times;
  return {
    ours,
    baseline,
    notes: [`the caller has its answer after ${Math.round(Math.min(...answers))} ms at best`],
  };
}

/** One watcher opens a stream on a connection that is there, right after a change: until it has the backlog. */
async function measureBacklog({ nodes, samples }: Sizes): Promise<Samples> {
  await using crowds = await twoCrowds(nodes, 1);
  const times: number[][] = [[], []];
  for (let round = 0; round <= samples; round++) {
    for (const [side, crowd] of [crowds.ours, crowds.baseline].entries()) {
      await crowd.change(0);
      const { askedMs } = await crowd.open(1);
      if (round > 0) times[side]?.push(askedMs);
      await crowd.close();
    }
  }
  const [ours = [], baseline = []] = times;
  return { ours, baseline };
}

export function curatorRows({ nodes }: Sizes): readonly Row[] {
  const watchers = Math.ceil(nodes / 20);
  const baseline = "ready-bytes.ts";
  return [
    {
      name: "curator",
      ours: `our Curator: a change to ${watchers.toLocaleString("en")} watchers`,
      baseline,
      unit: "ms",
      aim: { kind: "ratio", most: 1.3 },
      measure: ({ samples }) => measureChange(watchers, samples),
    },
    {
      name: "curator",
      ours: `our Curator: backlog of ${nodes.toLocaleString("en")} nodes to one`,
      baseline,
      unit: "ms",
      aim: { kind: "ratio", most: 1.3 },
      measure: measureBacklog,
    },
  ];
}
