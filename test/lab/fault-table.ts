/**
 * The table of all faults that a test run has made, which `bun run test` prints at its end (see fault.ts).
 */
import { appendFile, mkdir, readFile, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { root } from "../../scripts/paths.ts";

const rowsFile = join(root, "dist/test-reports/faults.jsonl");

/** What one fault cost. */
export interface FaultRow {
  readonly fault: string;
  readonly sent: number;
  /** Replies that did not come within 500 ms. */
  readonly lost: number;
  readonly slowestMs: number;
  /** From the end of what made the fault until all was right again; null: nothing had to heal. */
  readonly healedMs: number | null;
}

/** Takes what earlier runs recorded away. */
export async function forgetFaults(): Promise<void> {
  await rm(rowsFile, { force: true });
}

/** The table of all faults since then; empty without any. */
export async function faultTable(): Promise<readonly string[]> {
  const text = await readFile(rowsFile, "utf8").catch(() => "");
  const rows = text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as FaultRow);
  if (rows.length === 0) return [];
  const width = Math.max(...rows.map(({ fault }) => fault.length));
  const cells = (fault: string, ...rest: readonly string[]): string =>
    [fault.padEnd(width), ...rest.map((cell) => cell.padStart(8))].join("  ");
  return [
    cells("fault", "pings", "lost", "slowest", "healed"),
    ...rows.map(({ fault, sent, lost, slowestMs, healedMs }) =>
      cells(
        fault,
        String(sent),
        String(lost),
        `${slowestMs.toFixed(0)} ms`,
        healedMs === null ? "-" : `${(healedMs / 1_000).toFixed(2)} s`,
      ),
    ),
  ];
}

/** Adds a row; tests run in processes of their own. */
export async function recordFault(row: FaultRow): Promise<void> {
  await mkdir(dirname(rowsFile), { recursive: true });
  await appendFile(rowsFile, `${JSON.stringify(row)}\n`);
}
