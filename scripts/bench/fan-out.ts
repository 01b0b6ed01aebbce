/**
 * What a cluster costs its Curator, by its size: `bun run bench fan-out`.
 *
 * Of N nodes everybody watches everybody: all open their streams at once, then one node changes at a time. The watchers
 * share the machine's processors with the Curator, so that the times are those of the whole; the Curator's own part
 * is its processor time, which is told beside.
 */
import { type Crowd, tlsCrowds, twoCrowds, type TwoCrowds, type Usage } from "./crowd.ts";
import type { Panel } from "./curves.ts";
import { colors, type Result } from "./report.ts";
import type { Sizes } from "./row.ts";
import { summarize } from "./statistics.ts";

/** Processes that hold the watchers of one Curator. */
const processes = 4;

/** What one Curator did and needed. */
interface Side {
  readonly bootMs: number[];
  readonly bootProcessorMs: number[];
  readonly bootMegabytes: number[];
  readonly changeMs: number[];
  readonly changeProcessorMs: number[];
  readonly changeKilobytes: number[];
  readonly peakMegabytes: number[];
  failures: number;
}

const emptySide = (): Side => ({
  bootMs: [],
  bootProcessorMs: [],
  bootMegabytes: [],
  changeMs: [],
  changeProcessorMs: [],
  changeKilobytes: [],
  peakMegabytes: [],
  failures: 0,
});

/** Changes that are counted together: processor time comes in ticks of 10 ms. */
const changesPerSample = 5;

async function boot(crowd: Crowd, nodes: number, side: Side): Promise<void> {
  const before = await crowd.usage();
  const { bootMs, failures } = await crowd.open(nodes);
  const after = await crowd.usage();
  side.bootMs.push(bootMs);
  side.bootProcessorMs.push(after.processorMs - before.processorMs);
  side.bootMegabytes.push(sentBetween(before, after) / 1e6);
  side.failures += failures;
}

async function change(crowd: Crowd, nodes: number, side: Side): Promise<void> {
  const before = await crowd.usage();
  for (let each = 0; each < changesPerSample; each++) side.changeMs.push((await crowd.change(nodes)).lastMs);
  const after = await crowd.usage();
  side.changeProcessorMs.push((after.processorMs - before.processorMs) / changesPerSample);
  side.changeKilobytes.push(sentBetween(before, after) / changesPerSample / 1e3);
}

function sentBetween(before: Usage, after: Usage): number {
  return after.bytes - before.bytes;
}

/** A result, and which figure of which cluster it is. */
interface Point extends Result {
  readonly nodes: number;
  readonly figure: string;
}

/** What is compared, in words. */
interface Names {
  readonly ours: string;
  readonly baseline: string;
}

async function measureCrowds(
  crowds: TwoCrowds,
  names: Names,
  { nodes, samples }: Sizes,
): Promise<readonly Point[]> {
  const sides = [
    { crowd: crowds.ours, side: emptySide() },
    { crowd: crowds.baseline, side: emptySide() },
  ] as const;
  // A crowd of thousands takes half a minute to gather.
  const boots = nodes > 1_000 ? 2 : samples;
  for (let round = 0; round < boots; round++) {
    for (const { crowd, side } of sides) {
      // Nobody has the backlog ready.
      await crowd.change(0);
      await boot(crowd, nodes, side);
      if (round === boots - 1)
        for (let sample = 0; sample < samples; sample++) await change(crowd, nodes, side);
      await crowd.close();
    }
  }
  for (const { crowd, side } of sides) side.peakMegabytes.push((await crowd.usage()).peakMegabytes);
  const [{ side: ours }, { side: baseline }] = sides;
  const result = (
    what: string,
    unit: Result["row"]["unit"],
    of: (side: Side) => readonly number[],
    notes: readonly string[] = [],
  ): Point => ({
    nodes,
    figure: what,
    row: {
      name: "fan-out",
      ours: `${nodes.toLocaleString("en")} nodes${names.ours}: ${what}`,
      baseline: names.baseline,
      unit,
      aim: { kind: "none" },
    },
    ours: of(ours),
    baseline: of(baseline),
    notes,
  });
  return [
    result("all boot at once, the last has the picture", "ms", ({ bootMs }) => bootMs, [
      `streams opened more than once: ${ours.failures}, ${baseline.failures} of the baseline`,
    ]),
    result("all boot at once, processor of the Curator", "ms", ({ bootProcessorMs }) => bootProcessorMs),
    result("all boot at once, sent by the Curator", "MB", ({ bootMegabytes }) => bootMegabytes),
    result("one changes, the last has it", "ms", ({ changeMs }) => changeMs),
    result("one changes, processor of the Curator", "ms", ({ changeProcessorMs }) => changeProcessorMs),
    result("one changes, sent by the Curator", "kB", ({ changeKilobytes }) => changeKilobytes),
    result("peak memory of the Curator", "MB", ({ peakMegabytes }) => peakMegabytes),
  ];
}

/** Results for a hundredth of the nodes of the large mesh, a tenth, and half; and what TLS adds to the tenth. */
export async function measureFanOut({
  nodes,
  samples,
}: Sizes): Promise<{ readonly results: readonly Result[]; readonly panels: readonly Panel[] }> {
  const points: Point[] = [];
  for (const part of [100, 10, 2]) {
    const size = Math.ceil(nodes / part);
    await using crowds = await twoCrowds(size, processes);
    const names = { ours: "", baseline: "ready-bytes.ts" };
    points.push(...(await measureCrowds(crowds, names, { nodes: size, samples })));
  }
  const panels = Object.entries(Object.groupBy(points, ({ figure }) => figure)).map(
    ([title, all = []]): Panel => ({
      title,
      unit: all[0]?.row.unit ?? "",
      curves: (["ours", "baseline"] as const).map((side) => ({
        name: side === "ours" ? "our Curator" : "ready bytes",
        color: colors[side],
        points: all.map((point) => ({ nodes: point.nodes, value: summarize(point[side]).median })),
      })),
    }),
  );
  const size = Math.ceil(nodes / 10);
  await using crowds = await tlsCrowds(size, processes);
  const names = { ours: " by TLS", baseline: "the same in plain text" };
  const byTls = await measureCrowds(crowds, names, { nodes: size, samples });
  // What is sent is the same on both sides, and grows as the square of the nodes.
  return { results: [...points, ...byTls], panels: panels.filter(({ title }) => !title.includes("sent by")) };
}
