/**
 * Runs the tests: `bun run test [PART-OF-A-FILE-NAME...] [OPTION-OF-BUN-TEST...]`.
 *
 * The unit tests run side by side. After them the integration tests run one after the other, since they count lost
 * packets and the machine should be theirs; those that mostly wait say so (`test.concurrent`) and run three at a time.
 * For these it installs missing packages and builds the executable when it is older than its sources. The last line is
 * `N passed, N failed`; a skipped test fails the run.
 * CLUSTERNET_TEST_LONG=1 (`bun run test:long`) runs the full sizes of what is otherwise smaller.
 */
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { build, isStale } from "./build.ts";
import { closingLine, countTests, isGood, type Counts } from "./junit.ts";
import { root } from "./paths.ts";
import { faultTable, forgetFaults } from "../test/lab/fault-table.ts";
import { long } from "../test/lab/long.ts";
import { setup } from "./setup.ts";

const isIntegration = (file: string): boolean => file.startsWith("test/integration/");

interface Suite {
  readonly name: string;
  readonly files: readonly string[];
  readonly flags: readonly string[];
}

/** Runs all test files whose name contains one of the words before the first option; options go to `bun test`. */
export async function runTests(argv: readonly string[]): Promise<Counts> {
  const firstOption = argv.findIndex((word) => word.startsWith("-"));
  const words = firstOption === -1 ? argv : argv.slice(0, firstOption);
  const options = firstOption === -1 ? [] : argv.slice(firstOption);

  const all = await Array.fromAsync(new Bun.Glob("test/**/*.test.ts").scan({ cwd: root }));
  const files = all
    .filter((file) => words.length === 0 || words.some((word) => file.includes(word)))
    .toSorted((a, b) => (a < b ? -1 : 1));
  const suites: readonly Suite[] = [
    {
      name: "unit",
      files: files.filter((file) => !isIntegration(file)),
      // Ten times as much to compute, and somebody else's work beside it.
      flags: ["--parallel=2", `--timeout=${long ? 300_000 : 30_000}`],
    },
    {
      name: "integration",
      files: files.filter(isIntegration),
      flags: ["--isolate", "--max-concurrency=3", "--timeout=120000"],
    },
  ];

  if (files.some(isIntegration)) {
    await setup("tests");
    if (await isStale()) await build();
  }
  await forgetFaults();
  let total: Counts = { passed: 0, failed: 0, skipped: 0 };
  for (const suite of suites) {
    if (suite.files.length === 0) continue;
    const counts = await runSuite(suite, options);
    total = {
      passed: total.passed + counts.passed,
      failed: total.failed + counts.failed,
      skipped: total.skipped + counts.skipped,
    };
  }
  for (const line of await faultTable()) console.log(line);
  return total;
}

async function runSuite({ name, files, flags }: Suite, options: readonly string[]): Promise<Counts> {
  const started = performance.now();
  const folder = join(root, "dist/test-reports");
  const report = join(folder, `${name}.xml`);
  await mkdir(folder, { recursive: true });
  // A run that ends early writes none, and an old one must not be counted in its place.
  await rm(report, { force: true });
  const reporter = ["--reporter=junit", `--reporter-outfile=${report}`];
  const run = Bun.spawn(
    [process.execPath, "test", ...flags, ...reporter, ...options, ...files.map((file) => `./${file}`)],
    { cwd: root, stdin: "ignore", stdout: "inherit", stderr: "inherit" },
  );
  const status = await run.exited;
  const found = Bun.file(report);
  const counts = countTests({ report: (await found.exists()) ? await found.text() : "", status, files });
  for (const remark of counts.remarks) console.log(remark);
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  console.log(`${name} tests: ${closingLine(counts)} in ${seconds} s`);
  return counts;
}

if (import.meta.main) {
  let counts: Counts = { passed: 0, failed: 1, skipped: 0 };
  try {
    counts = await runTests(process.argv.slice(2));
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
  }
  console.log(closingLine(counts));
  process.exitCode = isGood(counts) ? 0 : 1;
}
