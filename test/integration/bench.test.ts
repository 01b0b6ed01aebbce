/**
 * The benchmark runs: two rows with a few nodes, so that it cannot rot. What it measures is not judged here.
 */
import { expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Result } from "../../scripts/bench/report.ts";

const program = join(import.meta.dir, "../../scripts/bench/main.ts");

test("bun run bench measures the rows that it is asked for, and writes table, samples and picture", async () => {
  const out = await mkdtemp(join(tmpdir(), "clusternet-bench-"));
  try {
    const argv = [program, "change", "start", "curator", "--nodes", "30", "--samples", "1", "--out", out];
    const run = Bun.spawn([process.execPath, ...argv], { stdin: "ignore", stdout: "pipe", stderr: "pipe" });
    const [stdout, stderr, status] = await Promise.all([run.stdout.text(), run.stderr.text(), run.exited]);
    expect({ status, stderr: status === 0 ? "" : stderr }).toEqual({ status: 0, stderr: "" });

    expect((await readdir(out)).toSorted()).toEqual(["bench.json", "bench.svg", "bench.txt"]);
    expect(stdout.trim()).toBe((await readFile(join(out, "bench.txt"), "utf8")).trim());
    expect(stdout).toContain(await readFile(join(program, "../floor.ts"), "utf8"));
    const { results } = JSON.parse(await readFile(join(out, "bench.json"), "utf8")) as { results: Result[] };
    expect(results.map(({ row }) => row.ours)).toEqual([
      "one node changes at 3 nodes",
      "one node changes at 30 nodes",
      "clusternet --version",
      "start to the announcement sent",
      "our Curator: a change to 2 watchers",
      "our Curator: backlog of 30 nodes to one",
    ]);
    for (const { row, ours, baseline } of results) {
      const wrong = [...ours, ...baseline].filter((sample) => !(sample > 0 && sample < 60_000));
      expect({ row: row.ours, samples: [ours.length, baseline.length], wrong }).toEqual({
        row: row.ours,
        samples: row.ours === "clusternet --version" ? [3, 3] : [1, 1],
        wrong: [],
      });
    }
  } finally {
    await rm(out, { recursive: true, force: true });
  }
});

test.each([
  {
    argv: ["nothing"],
    want: 'Cannot run row "nothing": expected change, picture, restart, burst, quiet, memory, start, loss, curator, fan-out',
  },
  {
    argv: ["--frob"],
    want: expect.stringMatching(
      /^Cannot run the benchmark: Unknown option '--frob'[^]*\n\nUsage: bun run bench /,
    ),
  },
  { argv: ["change", "--nodes", "many"], want: "Cannot run --nodes: expected a whole number of at least 1" },
])("bun run bench refuses $argv and says what it expects", ({ argv, want }) => {
  const run = Bun.spawnSync([process.execPath, program, ...argv], { stderr: "pipe" });
  expect({ status: run.exitCode, stderr: run.stderr.toString() }).toEqual({
    status: 64,
    stderr: typeof want === "string" ? `${want}\n` : want,
  });
});

test("bun run bench --help says what it takes, and measures nothing", () => {
  const run = Bun.spawnSync([process.execPath, program, "--help"], { stderr: "pipe" });
  const [stdout, stderr] = [run.stdout.toString(), run.stderr.toString()];
  expect([run.exitCode, stderr, stdout]).toEqual([0, "", expect.stringMatching(/^Usage: bun run bench /)]);
  expect(stdout).toContain("change, picture, restart, burst, quiet, memory, start, loss, curator, fan-out");
});
