/** A small chart of one metric, with its values as a table. */

import type { Chart } from "../cluster/series.ts";
import { bytes, clock } from "../model/text.ts";
import { Text } from "./name.tsx";

const WIDTH = 240;
const HEIGHT = 56;
/** Rows of the table beside a chart: the newest values. */
const VALUES = 12;

export function ChartFigure({ chart }: { chart: Chart }) {
  const last = chart.value.at(-1);
  const most = chart.value.reduce((a, b) => Math.max(a, b), 0);
  return (
    <figure class="chart">
      <figcaption>
        <Text value={chart.title} />
        <strong>{last === undefined ? "–" : amount(chart, last)}</strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        <path class="area" d={`${line(chart, most)}V${HEIGHT}H0Z`} />
        <path class="line" d={line(chart, most)} />
      </svg>
      <details>
        <summary>Values<span class="hidden"> of {chart.title}</span></summary>
        <table>
          <thead><tr><th scope="col">Time</th><th scope="col">Value</th></tr></thead>
          <tbody>
            {chart.t.slice(-VALUES).map((t, i, times) => (
              <tr key={t}>
                <td>{clock(t)}</td>
                <td>{amount(chart, chart.value[chart.value.length - times.length + i]!)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </figure>
  );
}

function amount(chart: Chart, value: number): string {
  if (chart.unit === "bytes") return bytes(value);
  const shown = value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value.toPrecision(2);
  return chart.unit === "" ? shown : `${shown} ${chart.unit}`;
}

function line(chart: Chart, most: number): string {
  const from = chart.t[0] ?? 0;
  const width = (chart.t.at(-1) ?? from) - from;
  const points = chart.t.map((t, i) => {
    const x = width === 0 ? WIDTH : ((t - from) / width) * WIDTH;
    const y = HEIGHT - 2 - (most === 0 ? 0 : (chart.value[i]! / most) * (HEIGHT - 6));
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  return points.length === 0 ? `M0 ${HEIGHT - 2}` : `M0 ${points[0]!.split(" ")[1]}L${points.join("L")}`;
}
