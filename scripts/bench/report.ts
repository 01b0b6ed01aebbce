/**
 * A run of the benchmark as a table for people, and as a picture: ours beside the baseline, row by row. Pure: both are texts.
 */
import type { Row, Samples } from "./row.ts";
import { compare, type Aim, type Comparison } from "./statistics.ts";

/** A row and what it has measured. */
export interface Result extends Samples {
  readonly row: Omit<Row, "measure">;
}

/** The rows as lines of equal width, then their notes. */
export function renderTable(results: readonly Result[]): string {
  const head = ["", "ours: min median max", "baseline: min median max", "", "ratio", "aim", ""];
  const cells = results.map((result) => {
    const { row } = result;
    const comparison = compareSides(result);
    const { ours, baseline, ratio, met } = comparison;
    return [
      row.ours,
      [ours.min, ours.median, ours.max].map(renderNumber).join(" "),
      [baseline.min, baseline.median, baseline.max].map(renderNumber).join(" "),
      row.unit,
      ratio === undefined ? "-" : ratio.toFixed(2),
      renderAim(row.aim, row.unit),
      row.aim.kind === "none" ? "" : met ? "met" : "MISSED",
    ];
  });
  const all = [head, ...cells];
  const widths = head.map((_, column) => Math.max(...all.map((line) => line[column]?.length ?? 0)));
  const lines = all.map((line) =>
    line
      .map((cell, column) =>
        column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0),
      )
      .join("  ")
      .trimEnd(),
  );
  const notes = results.map(({ row, ours, notes = [] }) => {
    const more = notes.map((note) => `; ${note}`).join("");
    return `${row.ours}: beside ${row.baseline}; ${ours.length} samples each${more}`;
  });
  return `${[...lines, "", ...notes].join("\n")}\n`;
}

function compareSides({ ours, baseline, row }: Result): Comparison {
  return compare(ours, baseline, row.aim);
}

/** Three digits or so. */
export function renderNumber(value: number): string {
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

function renderAim(aim: Aim, unit: string): string {
  switch (aim.kind) {
    case "ratio":
      return `${aim.most}×`;
    case "above":
      return `+${aim.most} ${unit}`;
    case "plain":
      return `${aim.most} ${unit}`;
    case "none":
      return "";
  }
  return aim satisfies never;
}

const picture = { width: 960, left: 350, right: 150, bar: 13, rowHeight: 46, top: 80 } as const;
/** Of ours and of the baseline in every picture. */
export const colors = { ours: "#2a6fb0", baseline: "#9aa1aa", missed: "#b03a2a", text: "#222222" } as const;

/**
 * An SVG with two bars a row, ours above the baseline, the longer of the two as long as there is room; a thin line from
 * minimum to maximum; a bar of ours that misses its aim is red.
 */
export function renderPicture(results: readonly Result[], caption: string): string {
  const { width, left, right, bar, rowHeight, top } = picture;
  const room = width - left - right;
  const rows = results.map((result, index) => {
    const { ours, baseline, ratio, met } = compareSides(result);
    const { row } = result;
    const y = top + index * rowHeight;
    const longest = Math.max(ours.max, baseline.max) || 1;
    const x = (value: number): string => (left + (value / longest) * room).toFixed(1);
    const side = (name: string, summary: Comparison["ours"], atY: number, color: string): string => {
      const middle = atY + bar / 2;
      return [
        `<rect x="${left}" y="${atY}" width="${((summary.median / longest) * room).toFixed(1)}" height="${bar}" fill="${color}"/>`,
        `<line x1="${x(summary.min)}" x2="${x(summary.max)}" y1="${middle}" y2="${middle}" stroke="${colors.text}"/>`,
        `<text x="${width - right + 8}" y="${atY + bar - 2}">${renderNumber(summary.median)} ${row.unit} ${name}</text>`,
      ].join("\n");
    };
    const verdict = [
      ratio === undefined ? "" : `${ratio.toFixed(2)}×`,
      row.aim.kind === "none" ? "" : `aim ${renderAim(row.aim, row.unit)}`,
    ];
    return [
      `<text x="8" y="${y + bar - 2}" font-weight="bold">${escapeXml(row.ours)}</text>`,
      `<text x="8" y="${y + 2 * bar + 2}" fill="#555555">${escapeXml([...verdict, `beside ${row.baseline}`].filter((text) => text !== "").join(", "))}</text>`,
      side("ours", ours, y, met ? colors.ours : colors.missed),
      side("baseline", baseline, y + bar + 3, colors.baseline),
    ].join("\n");
  });
  const height = top + results.length * rowHeight + 8;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="11">
<rect width="${width}" height="${height}" fill="white"/>
<text x="8" y="22" font-size="15">clusternet beside the baseline: medians, thin line from minimum to maximum; shorter is better</text>
${renderCaption(caption, 42)}
${rows.join("\n")}
</svg>
`;
}

/** Small print of one or several lines, the first at that height. */
export function renderCaption(caption: string, y: number): string {
  const lines = caption.split("\n");
  return lines
    .map((line, index) => `<text x="8" y="${y + 16 * index}" fill="#555555">${escapeXml(line)}</text>`)
    .join("\n");
}

/** As text of an SVG. */
export function escapeXml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
