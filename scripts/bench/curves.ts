/**
 * The fan-out as a picture: how a figure grows with the cluster, ours and the baseline, on scales of powers of ten. Pure.
 */
import { escapeXml, renderCaption, renderNumber } from "./report.ts";

/** One curve of a panel: points by number of nodes. */
export interface Curve {
  readonly name: string;
  readonly color: string;
  readonly points: readonly { readonly nodes: number; readonly value: number }[];
}

export interface Panel {
  readonly title: string;
  readonly unit: string;
  readonly curves: readonly Curve[];
}

const size = { width: 300, height: 280, left: 52, top: 96, plotWidth: 196, plotHeight: 116 } as const;

/** The panels side by side. */
export function renderCurves(panels: readonly Panel[], caption: string): string {
  const width = panels.length * size.width;
  const drawn = panels.map(
    (panel, index) => `<g transform="translate(${index * size.width} 0)">\n${drawPanel(panel)}\n</g>`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${size.height}" font-family="sans-serif" font-size="11">
<rect width="${width}" height="${size.height}" fill="white"/>
${renderCaption(caption, 20)}
${drawn.join("\n")}
</svg>
`;
}

function drawPanel({ title, unit, curves }: Panel): string {
  const points = curves.flatMap((curve) => curve.points);
  const nodes = [...new Set(points.map((point) => point.nodes))].toSorted((a, b) => a - b);
  const x = scale(nodes, size.plotWidth);
  const y = scale(
    points.map(({ value }) => value),
    size.plotHeight,
  );
  const at = (point: { readonly nodes: number; readonly value: number }): readonly [number, number] => [
    size.left + x(point.nodes),
    size.top + size.plotHeight - y(point.value),
  ];
  const frame = `<rect x="${size.left - 28}" y="${size.top - 20}" width="${size.plotWidth + 56}" height="${size.plotHeight + 40}" fill="none" stroke="#cccccc"/>`;
  const below = nodes.map(
    (count) =>
      `<text x="${(size.left + x(count)).toFixed(1)}" y="${size.top + size.plotHeight + 36}" text-anchor="middle">${count.toLocaleString("en")}</text>`,
  );
  const lines = curves.map((curve, index) => {
    const places = curve.points.map(at);
    const path = places.map((place) => place.map((each) => each.toFixed(1)).join(",")).join(" ");
    const labels = places.map(([cx, cy], point) => {
      const value = renderNumber(curve.points[point]?.value ?? 0);
      // The first curve is labelled above its points, the second below.
      const labelY = cy + (index === 0 ? -6 : 14);
      return `<circle cx="${cx.toFixed(1)}" cy="${cy.toFixed(1)}" r="3" fill="${curve.color}"/><text x="${cx.toFixed(1)}" y="${labelY.toFixed(1)}" text-anchor="middle" fill="${curve.color}">${value}</text>`;
    });
    const name = `<text x="${size.left + index * 110}" y="${size.height - 8}" fill="${curve.color}">— ${escapeXml(curve.name)}</text>`;
    return `<polyline points="${path}" fill="none" stroke="${curve.color}" stroke-width="1.5"/>\n${labels.join("\n")}\n${name}`;
  });
  return [
    `<text x="8" y="66" font-weight="bold">${escapeXml(`${title}, ${unit}`)}</text>`,
    frame,
    ...below,
    ...lines,
  ].join("\n");
}

/** Where a value lies between the least and the largest, by powers of ten; values that are not positive lie at the least. */
function scale(values: readonly number[], length: number): (value: number) => number {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  return (value) => (value > 0 && most > least ? ((Math.log10(value) - least) / (most - least)) * length : 0);
}
