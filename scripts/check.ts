/**
 * Says yes or no to the whole project: `bun run check`.
 *
 * Every stage runs, also after one that failed, so that one run shows everything. A stage that is no test
 * counts as one failure when it fails. The last line is `N passed, N failed`.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "./build.ts";
import { closingLine, isGood, type Counts } from "./junit.ts";
import { binary, root } from "./paths.ts";
import { setup } from "./setup.ts";
import { runTests } from "./test.ts";
import { runTool } from "./tool.ts";

async function checkGeneratedCode(): Promise<void> {
  await Bun.$`${process.execPath} scripts/gen-proto.ts --check`.cwd(root);
}

async function checkShellScripts(): Promise<void> {
  const listed = await Array.fromAsync(
    new Bun.Glob("{scripts,test,.ci}/**/{*.sh,run}").scan({ cwd: root, dot: true }),
  );
  await Bun.$`shellcheck ${listed}`.cwd(root);
}

/** The executable does its simplest things outside this folder, with nothing in its environment. */
async function smokeTest(): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "clusternet-smoke-"));
  try {
    for (const { word, status } of [
      { word: "--version", status: 0 },
      { word: "--help", status: 0 },
      { word: "--no-such-flag", status: 64 },
    ]) {
      const run = Bun.spawnSync([binary, word], { cwd: folder, env: {} });
      if (run.exitCode !== status) {
        throw new Error(
          `"clusternet ${word}" ended with status ${run.exitCode}, expected ${status}: ${run.stderr.toString()}`,
        );
      }
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

let tests: Counts = { passed: 0, failed: 0, skipped: 0 };

const stages: readonly { readonly name: string; readonly run: () => Promise<void> }[] = [
  { name: "packages", run: () => setup("tests") },
  { name: "format", run: () => runTool(["oxfmt", "--check"]) },
  { name: "lint", run: () => runTool(["oxlint", "--type-aware"]) },
  { name: "types", run: () => runTool(["tsc", "-p", "."]) },
  { name: "generated code", run: checkGeneratedCode },
  { name: "shell scripts", run: checkShellScripts },
  { name: "build", run: build },
  { name: "smoke test", run: smokeTest },
  {
    name: "tests",
    run: async () => {
      tests = await runTests([]);
    },
  },
];

const started = performance.now();
const secondsSince = (since: number): string => ((performance.now() - since) / 1000).toFixed(1);
const failed: string[] = [];
for (const { name, run } of stages) {
  console.log(`== ${name}`);
  const stageStarted = performance.now();
  try {
    await run();
    console.log(`== ${name}: done in ${secondsSince(stageStarted)} s`);
  } catch (error) {
    failed.push(name);
    console.log(error instanceof Error ? error.message : String(error));
    console.log(`== ${name}: FAILED after ${secondsSince(stageStarted)} s`);
  }
}
if (failed.length > 0) console.log(`failed: ${failed.join(", ")}`);
console.log(`all stages: ${secondsSince(started)} s`);
const total: Counts = { ...tests, failed: tests.failed + failed.length };
console.log(closingLine(total));
process.exitCode = isGood(total) ? 0 : 1;
