/**
 * Tables, lists and ages as every command prints them, so that one `grep`, `cut` or `awk -F '  +'` works on all.
 *
 * Columns are two spaces apart, lists in a cell are one word, and ages are in the largest unit that fits. Text in a cell
 * can come from another program, so whatever a terminal would obey is escaped here.
 */
import { escapeUnsafe } from "./core/printable.ts";

/** Rows as lines: every column but the last as wide as its widest cell, two spaces between. */
export function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const cells = rows.map((row) => row.map(escapeUnsafe));
  const widths: number[] = [];
  for (const row of cells) {
    for (const [column, cell] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, cell.length);
  }
  return cells.map((row) =>
    row
      .map((cell, column) => (column === row.length - 1 ? cell : cell.padEnd((widths[column] ?? 0) + 2)))
      .join("")
      .trimEnd(),
  );
}

/** A list in a cell. With `most` the first so many, and how many more there are. */
export function renderList(texts: readonly string[], most = Infinity): string {
  if (texts.length === 0) return "-";
  const more = texts.length - most;
  return more > 0 ? `${texts.slice(0, most).join(",")},+${more}` : texts.join(",");
}

const units = [
  { name: "d", seconds: 86_400 },
  { name: "h", seconds: 3600 },
  { name: "min", seconds: 60 },
  { name: "s", seconds: 1 },
] as const;

/** How long ago, in the largest unit that fits. A time in the future (clocks differ) is "0 s ago". */
export function ago(time: string, now: Date): string {
  const seconds = Math.max(0, Math.floor((now.getTime() - Date.parse(time)) / 1000));
  const unit = units.find((each) => seconds >= each.seconds) ?? units[units.length - 1];
  return `${Math.floor(seconds / (unit?.seconds ?? 1))} ${unit?.name ?? "s"} ago`;
}
