/**
 * Counts the outcome of one `bun test --reporter=junit`.
 *
 * The report alone is not to be trusted: a file that cannot be loaded is in the exit status only, and a test
 * that calls `process.exit(0)` ends the run with status 0 and no report. So every file that was to be run must
 * be in the report, and a bad status must have a failure: what is missing counts as one.
 */

export interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

export interface TestRun {
  /** Content of the report; empty when there is none. */
  readonly report: string;
  /** Exit status of `bun test`. */
  readonly status: number;
  /** Files that were to be run, as they were given, relative to the project. */
  readonly files: readonly string[];
}

/** The counts, and one sentence for every failure that is not in the report. */
export function countTests({
  report,
  status,
  files,
}: TestRun): Counts & { readonly remarks: readonly string[] } {
  const root = /<testsuites\b[^>]*>/.exec(report)?.[0] ?? "";
  const attribute = (name: string): number => Number(new RegExp(`\\s${name}="(\\d+)"`).exec(root)?.[1] ?? 0);
  const skipped = attribute("skipped");
  const reported = attribute("failures") + attribute("errors");
  const reportedFiles = new Set(
    [...report.matchAll(/<testsuite\b[^>]*\sfile="([^"]*)"/g)].map(([, file]) => file),
  );
  const remarks = files
    .filter((file) => !reportedFiles.has(file))
    .map((file) => `${file} reported no test: it could not be loaded, or ended the run`);
  if (status !== 0 && reported === 0 && remarks.length === 0) {
    remarks.push(`bun test ended with status ${status}`);
  }
  return {
    passed: attribute("tests") - reported - skipped,
    failed: reported + remarks.length,
    skipped,
    remarks,
  };
}

/** The line that continuous integration reads. */
export function closingLine({ passed, failed, skipped }: Counts): string {
  return `${passed} passed, ${failed} failed${skipped === 0 ? "" : `, ${skipped} skipped`}`;
}

/** A skipped test is a test that nobody saw pass. */
export function isGood({ passed, failed, skipped }: Counts): boolean {
  return passed > 0 && failed === 0 && skipped === 0;
}
