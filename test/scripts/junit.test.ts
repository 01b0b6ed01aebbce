/**
 * What `bun run check` makes of a test run, tried on real runs of `bun test`: the closing line must never be
 * better than what happened.
 */
import { expect, test } from "bun:test";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { closingLine, countTests, isGood } from "../../scripts/junit.ts";

const head = `import { test, expect, afterAll } from "bun:test";\n`;
const passing = `${head}test("passes", () => {});`;

test.each([
  {
    name: "counts what passed",
    files: { "a.test.ts": passing, "b.test.ts": passing },
    want: { line: "2 passed, 0 failed", good: true, remarks: [] },
  },
  {
    name: "counts what failed",
    files: { "a.test.ts": passing, "b.test.ts": `${head}test("fails", () => { expect(1).toBe(2); });` },
    want: { line: "1 passed, 1 failed", good: false, remarks: [] },
  },
  {
    name: "does not accept a skipped test",
    files: { "a.test.ts": `${passing}\ntest["skip"]("later", () => {});` },
    want: { line: "1 passed, 0 failed, 1 skipped", good: false, remarks: [] },
  },
  {
    name: "counts a file that cannot be loaded",
    files: { "a.test.ts": passing, "b.test.ts": `throw new Error("on purpose");` },
    want: {
      line: "1 passed, 1 failed",
      good: false,
      remarks: ["test/b.test.ts reported no test: it could not be loaded, or ended the run"],
    },
  },
  {
    name: "counts a failed afterAll",
    files: { "a.test.ts": `${passing}\nafterAll(() => { throw new Error("on purpose"); });` },
    want: { line: "1 passed, 1 failed", good: false, remarks: [] },
  },
  {
    name: "does not believe a run that a test ended with status 0",
    files: { "a.test.ts": `${head}test("leaves", () => { process.exit(0); });` },
    want: {
      line: "0 passed, 1 failed",
      good: false,
      remarks: ["test/a.test.ts reported no test: it could not be loaded, or ended the run"],
    },
  },
  {
    name: "does not accept a run without tests",
    files: {},
    want: { line: "0 passed, 1 failed", good: false, remarks: ["bun test ended with status 1"] },
  },
])("countTests() $name", async ({ files, want }) => {
  const folder = await mkdtemp(join(tmpdir(), "clusternet-junit-"));
  try {
    await mkdir(join(folder, "test"));
    const names: string[] = [];
    for (const [name, text] of Object.entries(files)) {
      await writeFile(join(folder, "test", name), text);
      names.push(`test/${name}`);
    }
    const report = join(folder, "report.xml");
    const run = Bun.spawn(
      [process.execPath, "test", "--reporter=junit", `--reporter-outfile=${report}`, ...names],
      { cwd: folder, stdout: "ignore", stderr: "ignore" },
    );
    const status = await run.exited;
    const found = Bun.file(report);
    const counts = countTests({
      report: (await found.exists()) ? await found.text() : "",
      status,
      files: names,
    });
    expect({ line: closingLine(counts), good: isGood(counts), remarks: counts.remarks }).toEqual(want);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
