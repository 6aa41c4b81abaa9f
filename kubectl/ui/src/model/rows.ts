/** The rows of the table of volumes. */

import { progress, steps, type Progress } from "../life/steps.ts";
import { faultOf, type Fault } from "./fault.ts";
import { number, text } from "./json.ts";
import { allLives, gather, type Life, type LifeKind } from "./lives.ts";
import { isOurs } from "./ours.ts";
import type { State } from "./state.ts";
import { quantity } from "./text.ts";
import { verdictOf, type Verdict } from "./verdict.ts";

export interface Row {
  key: string;
  kind: LifeKind;
  /** `claim`, `snapshot`, `group`, `inline` or `volume`. */
  label: string;
  namespace: string;
  name: string;
  node: string;
  size: number | undefined;
  used: number | undefined;
  created: number;
  fault: Fault | undefined;
  verdict: Verdict;
  progress: Progress[];
  /** What the text filter searches, in lower case. */
  search: string;
}

export function row(life: Life, state: State, now: number): Row {
  const { main, reported, kind } = life;
  const inline = kind === "volume" && text(reported?.item.inline) !== "";
  const pod = inline ? life.objects.find((o) => o.kind === "Pod") : undefined;
  const metadata = (main ?? pod)?.object["metadata"];
  const verdict = verdictOf(life, state, now);
  const name = text(metadata, "name") || main?.key || text(reported?.item.name) || life.key.slice(7);
  const node = nodeOf(life);
  return {
    key: life.key,
    kind,
    label: inline ? "inline" : kind,
    namespace: text(metadata, "namespace"),
    name,
    node,
    size: sizeOf(life),
    used: number(reported?.item.allocated_bytes),
    created: main?.created ?? (number(reported?.item.created_ns) ?? 0) / 1e3,
    fault: faultOf(reported?.item),
    verdict,
    progress: kind === "snapshot" || kind === "group" ? [] : progress(steps(life.spans, now)),
    search: [name, node, verdict.word, ...life.ids, ...life.objects.map((o) => o.key)].join(" ").toLowerCase(),
  };
}

/** The node that has the data, or the chosen one. */
function nodeOf(life: Life): string {
  if (life.reported) return life.reported.node;
  const chosen = text(life.main?.object, "metadata", "annotations", "volume.kubernetes.io/selected-node");
  if (chosen !== "") return chosen;
  for (const span of life.spans) if (span.process === "node" && span.node !== "") return span.node;
  for (const object of life.objects) {
    const node = text(object.object, "spec", "nodeName");
    if (object.kind === "VolumeAttachment" && node !== "") return node;
    const managed = text(object.object, "metadata", "labels", "snapshot.storage.kubernetes.io/managed-by");
    if (managed !== "") return managed;
    const label = text(object.object, "metadata", "labels", "hostloop.csi.dev/node");
    if (label !== "") return label;
  }
  return "";
}

function sizeOf({ main, reported }: Life): number | undefined {
  const claim = main?.object;
  const capacity = text(claim, "status", "capacity", "storage") || text(claim, "status", "restoreSize");
  return number(reported?.item.size_bytes) ??
    quantity(capacity || text(claim, "spec", "resources", "requests", "storage") || "none");
}

/** Rows by life key, computed again only for lives that changed or wait. */
export class Rows {
  private rows = new Map<string, Row>();
  private checked = 0;
  private complete = false;
  private counts = new Map<string, number>();
  /** Grows with each change. */
  version = 0;

  /** Computes rows until the deadline (`performance.now`). Returns true if all are up to date. */
  refresh(state: State, now: number, deadline: number, clock: () => number): boolean {
    if (!this.complete) {
      for (const key of allLives(state)) state.dirty.add(key);
      this.complete = true;
    }
    // Times go on without any message.
    if (Math.abs(now - this.checked) > 1e6) {
      this.checked = now;
      for (const { key, verdict } of this.rows.values()) {
        if (verdict.tone === "bad" || verdict.tone === "busy") state.dirty.add(key);
      }
    }
    for (const key of state.dirty) {
      state.dirty.delete(key);
      const life = gather(state, key);
      if (life && isOurs(life, state)) this.rows.set(key, row(life, state, now));
      else this.rows.delete(key);
      this.version += 1;
      this.counts.set(key, this.changes(key) + 1);
      if (clock() > deadline) return state.dirty.size === 0;
    }
    return true;
  }

  /** Forgets all rows: the state is another one. */
  reset(): void {
    this.rows.clear();
    this.complete = false;
    this.version += 1;
  }

  /** How often a life was computed. */
  changes(key: string): number {
    return this.counts.get(key) ?? 0;
  }

  all(): Row[] {
    return [...this.rows.values()];
  }
}

export interface Filter {
  namespace: string;
  node: string;
  text: string;
  /** Empty, or `stuck`, `busy`, `live` or `deleted`. */
  state: string;
}

const ORDER: Readonly<Record<Verdict["tone"], number>> = { bad: 0, busy: 1, wait: 2, good: 3, gone: 4 };

/** The rows that a filter leaves: the stuck ones first, then the newest. */
export function select(rows: readonly Row[], filter: Filter): Row[] {
  const words = filter.text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return rows
    .filter((r) =>
      (filter.namespace === "" || r.namespace === filter.namespace) &&
      (filter.node === "" || r.node === filter.node) &&
      inState(r.verdict, filter.state) &&
      words.every((word) => r.search.includes(word) || r.namespace.toLowerCase().includes(word)))
    .sort((a, b) =>
      ORDER[a.verdict.tone] - ORDER[b.verdict.tone] || b.created - a.created || (a.key < b.key ? -1 : 1));
}

function inState(verdict: Verdict, state: string): boolean {
  switch (state) {
    case "stuck": return verdict.stuck;
    case "busy": return verdict.tone === "busy" || verdict.tone === "wait";
    case "live": return verdict.tone === "good";
    case "deleted": return verdict.tone === "gone";
    default: return true;
  }
}

/** The values of one column, sorted, for a menu. */
export function choices(rows: readonly Row[], column: "namespace" | "node"): string[] {
  return [...new Set(rows.map((r) => r[column]))].filter((value) => value !== "").sort();
}
