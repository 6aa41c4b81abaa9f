/** Charts from metrics: which ones, and their points. */

import type { Series, State } from "../model/state.ts";

export interface Chart {
  /** The metric with the labels that distinguish it. */
  name: string;
  title: string;
  unit: "bytes" | "per second" | "";
  t: number[];
  value: number[];
}

const COUNTER = /_(total|count|sum)$/;

/** Splits `name{a="b"}` into its name and labels. */
export function parseMetric(text: string): { name: string; labels: Map<string, string> } {
  const brace = text.indexOf("{");
  const labels = new Map<string, string>();
  if (brace === -1) return { name: text, labels };
  for (const match of text.slice(brace).matchAll(/([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"/g)) {
    labels.set(match[1]!, match[2]!);
  }
  return { name: text.slice(0, brace), labels };
}

/** The charts of all metrics, nodes added up. A counter becomes a rate. */
export function charts(state: State): Chart[] {
  return [...state.metrics.entries()].map(([metric, nodes]) => {
    const { name, labels } = parseMetric(metric);
    const counter = COUNTER.test(name);
    const all = [...nodes.values()].map((series) => (counter ? rate(series) : series));
    const unit = counter ? "per second" : name.endsWith("_bytes") ? "bytes" : "";
    return { name: metric, title: title(name, labels), unit, ...total(all) } satisfies Chart;
  }).sort((a, b) => (a.title < b.title ? -1 : 1));
}

const HIDDEN = new Set(["driver_name", "le"]);

function title(name: string, labels: ReadonlyMap<string, string>): string {
  const words = name.replace(COUNTER, "").replace(/_(bytes|seconds)$/, "").replace(/^(hostloop|csi)_/, "").replaceAll("_", " ");
  const values = [...labels].filter(([label]) => !HIDDEN.has(label)).map(([, value]) => value.replace(/^.*\//, ""));
  return values.length === 0 ? words : `${words}: ${values.join(", ")}`;
}

/** The increase each second between points. A counter that fell began again at 0. */
export function rate(series: Series): Series {
  const found: Series = { t: [], value: [] };
  for (let i = 1; i < series.t.length; i++) {
    const seconds = (series.t[i]! - series.t[i - 1]!) / 1e6;
    if (seconds <= 0) continue;
    const [before, after] = [series.value[i - 1]!, series.value[i]!];
    found.t.push(series.t[i]!);
    found.value.push((after < before ? after : after - before) / seconds);
  }
  return found;
}

/** Buckets of five seconds, as the metrics are sent. */
const BUCKET = 5e6;

/** The sum of several series. Where one has no point, its last one counts. */
export function total(all: readonly Series[]): Series {
  if (all.length === 1) return { t: [...all[0]!.t], value: [...all[0]!.value] };
  const buckets = new Map<number, Map<Series, number>>();
  for (const series of all) {
    for (const [i, t] of series.t.entries()) {
      const bucket = Math.floor(t / BUCKET);
      let values = buckets.get(bucket);
      if (!values) buckets.set(bucket, (values = new Map()));
      values.set(series, series.value[i]!);
    }
  }
  const last = new Map<Series, number>();
  const found: Series = { t: [], value: [] };
  for (const [bucket, values] of [...buckets].sort(([a], [b]) => a - b)) {
    for (const [series, value] of values) last.set(series, value);
    found.t.push(bucket * BUCKET);
    found.value.push([...last.values()].reduce((sum, value) => sum + value, 0));
  }
  return found;
}
