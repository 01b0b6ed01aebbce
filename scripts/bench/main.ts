/**
 * The benchmark: `bun run bench [ROW…] [--quick] [--nodes N] [--samples N] [--out DIR]`. About five minutes, root.
 *
 * Every figure is a ratio to a baseline that is measured by turns with it in the same run, so that it says something on
 * any machine; `bench.json`, `bench.svg` and `bench.txt` go to dist/bench. The executable under test is the compiled one,
 * WireGuard is wireguard-go in namespaces. Says what misses its aim, and fails only when something could not be measured.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Lab } from "../../test/lab/lab.ts";
import { build, isStale } from "../build.ts";
import { root } from "../paths.ts";
import { setup } from "../setup.ts";
import { agentRows } from "./agent-rows.ts";
import { curatorRows } from "./curator-rows.ts";
import { renderCurves } from "./curves.ts";
import { measureFanOut } from "./fan-out.ts";
import { readMachine, renderMachine } from "./machine.ts";
import { renderPicture, renderTable, type Result } from "./report.ts";
import type { Row, Sizes } from "./row.ts";
import { costOfStamps, WgStamps } from "./stamps.ts";
import { startRows } from "./start-rows.ts";

/** Takes eight minutes, and is run only when it is named. */
const fanOut = "fan-out";
const { values, positionals } = parseCommandLine();
if (values.help) {
  console.log(usage());
  process.exit(0);
}
const sizes: Sizes = {
  nodes: Number(values.nodes ?? (values.quick ? 1_000 : 10_000)),
  samples: Number(values.samples ?? (values.quick ? 3 : 7)),
};
for (const [name, value] of Object.entries(sizes)) {
  if (!Number.isInteger(value) || value < 1) refuse(`--${name}`, "a whole number of at least 1");
}

function parseCommandLine() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        help: { type: "boolean", short: "h", default: false },
        quick: { type: "boolean", default: false },
        nodes: { type: "string" },
        samples: { type: "string" },
        out: { type: "string", default: join(root, "dist/bench") },
      },
    });
  } catch (error) {
    if (!(error instanceof TypeError && "code" in error)) throw error;
    console.error(`Cannot run the benchmark: ${error.message}\n\n${usage()}`);
    process.exit(64);
  }
}

/** What `--help` prints. The names of rows do not depend on the sizes. */
function usage(): string {
  return `Usage: bun run bench [ROW…] [--quick] [--nodes N] [--samples N] [--out DIR]

  ROW          only these: ${rowNames({ nodes: 1, samples: 1 }).join(", ")};
               without any all but ${fanOut}
  --quick      small sizes: 1,000 nodes, three samples
  --nodes N    size of the mesh (default: 10000)
  --samples N  how often each side is measured (default: 7)
  --out DIR    where table, samples and picture go (default: dist/bench)`;
}

function refuse(what: string, expected: string): never {
  console.error(`Cannot run ${what}: expected ${expected}`);
  process.exit(64);
}

async function measure(row: Row): Promise<Result> {
  const begun = performance.now();
  const { measure: run, ...described } = row;
  const result = { row: described, ...(await run(sizes)) };
  console.error(`${row.ours}: ${((performance.now() - begun) / 1_000).toFixed(0)} s`);
  return result;
}

/** In the order of the rows; those that mostly wait come last, all at once. */
async function measureAll(rows: readonly Row[]): Promise<readonly Result[]> {
  const results: Result[] = [];
  for (const row of rows) if (row.quiet !== true) results.push(await measure(row));
  results.push(...(await Promise.all(rows.filter(({ quiet }) => quiet === true).map(measure))));
  return results;
}

async function stampCostMs(): Promise<number> {
  await using lab = await Lab.create();
  await using stamps = await WgStamps.create(await lab.directory());
  return costOfStamps(stamps);
}

/** Writes table, samples and picture, and prints the table. */
async function publish(name: string, results: readonly Result[], picture: string): Promise<void> {
  const head = [
    renderMachine(facts),
    `The wrapper that stamps calls of wg costs ${costMs.toFixed(1)} ms a call, on both sides.`,
  ];
  const hasFloor = results.some(({ row }) => row.baseline.startsWith("floor.ts"));
  const floor = hasFloor
    ? `\nThe floor (scripts/bench/floor.ts):\n\n${await Bun.file(join(import.meta.dir, "floor.ts")).text()}`
    : "";
  const text = `${head.join("\n")}\n\n${renderTable(results)}${floor}`;
  const samples = `${JSON.stringify({ facts, sizes, costMs, results }, undefined, 2)}\n`;
  await mkdir(values.out, { recursive: true });
  await writeFile(join(values.out, `${name}.txt`), text);
  await writeFile(join(values.out, `${name}.json`), samples);
  await writeFile(join(values.out, `${name}.svg`), picture);
  console.log(text);
}

function rowsOf(sizes: Sizes): readonly Row[] {
  return [...agentRows(sizes), ...startRows(), ...curatorRows(sizes)];
}

function rowNames(sizes: Sizes): readonly string[] {
  return [...new Set(rowsOf(sizes).map(({ name }) => name)), fanOut];
}

const rows = rowsOf(sizes);
const names = rowNames(sizes);
const unknown = positionals.find((word) => !names.includes(word));
if (unknown !== undefined) refuse(`row "${unknown}"`, names.join(", "));
await setup("tests");
if (await isStale()) await build();

const facts = readMachine();
const costMs = await stampCostMs();
const wanted = rows.filter(({ name }) => positionals.length === 0 || positionals.includes(name));
if (wanted.length > 0) {
  const results = await measureAll(wanted);
  await publish("bench", results, renderPicture(results, renderMachine(facts)));
}
if (positionals.includes(fanOut)) {
  const { results, panels } = await measureFanOut(sizes);
  await publish(fanOut, results, renderCurves(panels, renderMachine(facts)));
}
