/**
 * What the benchmark makes of its samples: the sums, the verdicts, the table and the picture.
 */
import { describe, expect, test } from "bun:test";
import { renderCurves } from "../../scripts/bench/curves.ts";
import { renderPicture, renderTable, type Result } from "../../scripts/bench/report.ts";
import { compare, summarize, type Aim } from "../../scripts/bench/statistics.ts";

test.each([
  { name: "of one sample gives that one", samples: [3], want: { min: 3, median: 3, max: 3 } },
  { name: "of an odd number takes the middle one", samples: [9, 1, 2], want: { min: 1, median: 2, max: 9 } },
  {
    name: "of an even number halves the two in the middle",
    samples: [10, 9, 1, 2],
    want: { min: 1, median: 5.5, max: 10 },
  },
])("summarize() $name", ({ samples, want }) => {
  expect(summarize(samples)).toEqual(want);
});

test("summarize() refuses a row without samples", () => {
  expect(() => summarize([])).toThrow("Cannot sum up a row: no sample, expected at least one");
});

test.each<{
  name: string;
  aim: Aim;
  ours: number;
  baseline: number;
  want: { ratio: number | undefined; met: boolean };
}>([
  {
    name: "meets a ratio to the hair",
    aim: { kind: "ratio", most: 1.5 },
    ours: 15,
    baseline: 10,
    want: { ratio: 1.5, met: true },
  },
  {
    name: "misses a ratio",
    aim: { kind: "ratio", most: 1.5 },
    ours: 16,
    baseline: 10,
    want: { ratio: 1.6, met: false },
  },
  {
    name: "meets a difference",
    aim: { kind: "above", most: 60 },
    ours: 84,
    baseline: 24,
    want: { ratio: 3.5, met: true },
  },
  {
    name: "misses a difference",
    aim: { kind: "above", most: 60 },
    ours: 96,
    baseline: 24,
    want: { ratio: 4, met: false },
  },
  {
    name: "meets a limit, whatever the baseline",
    aim: { kind: "plain", most: 0 },
    ours: 0,
    baseline: 0,
    want: { ratio: undefined, met: true },
  },
  {
    name: "misses a limit",
    aim: { kind: "plain", most: 0 },
    ours: 1,
    baseline: 0,
    want: { ratio: undefined, met: false },
  },
  {
    name: "is never missed without an aim",
    aim: { kind: "none" },
    ours: 9,
    baseline: 1,
    want: { ratio: 9, met: true },
  },
])("compare() $name", ({ aim, ours, baseline, want }) => {
  const { ratio, met } = compare([ours], [baseline], aim);
  expect({ ratio, met }).toEqual(want);
});

const results: readonly Result[] = [
  {
    row: {
      name: "a",
      ours: "one node < all",
      baseline: "floor & co",
      unit: "ms",
      aim: { kind: "ratio", most: 1.3 },
    },
    ours: [20, 10, 30],
    baseline: [10, 8, 12.25],
    notes: ["one wg set"],
  },
  {
    row: {
      name: "b",
      ours: "lost",
      baseline: "no restart",
      unit: "replies",
      aim: { kind: "plain", most: 0 },
    },
    ours: [0, 0],
    baseline: [0, 0],
  },
];

test("renderCurves() puts a point of ten times the nodes and ten times the value in the middle of both scales", () => {
  const points = [1, 10, 100].map((nodes) => ({ nodes, value: 2 * nodes }));
  const svg = renderCurves(
    [{ title: "boot", unit: "ms", curves: [{ name: "ours", color: "blue", points }] }],
    "on a machine",
  );
  const seen: string[] = [];
  new HTMLRewriter()
    .on("circle", {
      element(point) {
        seen.push(`${point.getAttribute("cx")} ${point.getAttribute("cy")}`);
      },
    })
    .on("polyline", {
      element(line) {
        seen.push(line.getAttribute("points") ?? "");
      },
    })
    .transform(svg);
  expect(seen).toEqual(["52.0,212.0 150.0,154.0 248.0,96.0", "52.0 212.0", "150.0 154.0", "248.0 96.0"]);
});

describe("report", () => {
  test("renderTable() shows both sides, the ratio and the verdict of each row, then the notes", () => {
    expect(renderTable(results)).toBe(
      `
                ours: min median max  baseline: min median max           ratio        aim
one node < all              10 20 30                 8 10 12.3       ms   2.00       1.3×  MISSED
lost                           0 0 0                     0 0 0  replies      -  0 replies     met

one node < all: beside floor & co; 3 samples each; one wg set
lost: beside no restart; 2 samples each
`.slice(1),
    );
  });

  test("renderPicture() is well-formed, with a bar for each side of each row and red where the aim is missed", () => {
    const svg = renderPicture(results, "on <this> machine");
    const seen = { open: [] as string[], bars: [] as string[], texts: "" };
    new HTMLRewriter()
      .on("rect[height='13']", {
        element(bar) {
          seen.bars.push(`${bar.getAttribute("width")} ${bar.getAttribute("fill")}`);
        },
      })
      .on("text", {
        text({ text }) {
          seen.texts += text;
        },
      })
      .transform(svg);
    expect(seen.bars).toEqual(["306.7 #b03a2a", "153.3 #9aa1aa", "0.0 #2a6fb0", "0.0 #9aa1aa"]);
    expect(seen.texts).toContain("one node &lt; all");
    expect(seen.texts).toContain("2.00×, aim 1.3×, beside floor &amp; co");
    expect(seen.texts).toContain("on &lt;this&gt; machine");
    expect(svg.match(/<text\b/g)?.length).toBe(svg.match(/<\/text>/g)?.length ?? 0);
  });
});
