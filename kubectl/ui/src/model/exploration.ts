/** What an exploration has found, from its report: each cut of the burst, and how to get it again. */

import type { View } from "../route.ts";
import { fields, list, number, text, texts, type Fields, type Unchecked } from "./json.ts";
import type { State } from "./state.ts";
import type * as Wire from "./wire.generated.ts";

export type Result = "passed" | "failed" | "unknown" | "unchecked";

const RESULTS: readonly Result[] = ["passed", "failed", "unknown", "unchecked"];

/** The snapshot of a cut that has not passed. */
export interface Kept {
  snapshot: string;
  why: string;
  /** The last lines of the check. */
  log: string[];
  /** A claim that has its content again. */
  again: Fields;
}

export interface Cut {
  number: number;
  result: Result;
  /** When it was taken, in microseconds since the epoch. */
  t: number;
  /** Bytes that were written since the cut before, at most; undefined if that is not known. */
  written: number | undefined;
  /** Undefined for a cut that is deleted. */
  kept: Kept | undefined;
}

export interface Exploration {
  id: string;
  namespace: string;
  claim: string;
  node: string;
  volume: string;
  /** When the first cut was taken. */
  start: number;
  /** Microseconds from the first cut to the last one. */
  burst: number;
  /** Why there are fewer cuts than requested. */
  ended: string;
  /** Numbers of cuts. */
  requested: number;
  taken: number;
  passed: number;
  failed: number;
  unknown: number;
  seed: number | undefined;
  problems: string[];
  cuts: Cut[];
  /** The command that explores the claim again; empty if the names in the report are none. */
  command: string;
}

export function readExploration(report: Unchecked<Wire.ExplorationReport>): Exploration {
  const start = (number(report.first_taken_ns) ?? 0) / 1e3;
  const kept = new Map<number, Kept>();
  for (const value of list(report.cuts)) {
    const row: Unchecked<Wire.CutRow> = fields(value);
    const id = number(row.number);
    if (id === undefined) continue;
    kept.set(id, { snapshot: text(row.snapshot), why: text(row.why), log: texts(row.log), again: fields(row.again) });
  }
  const cuts: Cut[] = [];
  // An older program names only the cuts that have not passed.
  for (const value of list(Array.isArray(report.timeline) ? report.timeline : report.cuts)) {
    const moment: Unchecked<Wire.CutMoment> = fields(value);
    const id = number(moment.number);
    const after = number(moment.after_first_ns);
    if (id === undefined || after === undefined) continue;
    cuts.push({
      number: id,
      result: RESULTS.find((result) => result === moment.result) ?? "unchecked",
      t: start + after / 1e3,
      written: number(moment.written_bytes),
      kept: kept.get(id),
    });
  }
  return {
    id: text(report.exploration),
    namespace: text(report.namespace),
    claim: text(report.claim),
    node: text(report.node),
    volume: text(report.volume),
    start,
    burst: (number(report.burst_ns) ?? 0) / 1e3,
    ended: text(report.burst_ended),
    requested: number(report.requested) ?? 0,
    taken: number(report.taken) ?? cuts.length,
    passed: number(report.passed) ?? 0,
    failed: number(report.failed) ?? 0,
    unknown: number(report.unknown) ?? 0,
    seed: number(report.seed),
    problems: texts(report.problems),
    cuts: cuts.sort((a, b) => a.t - b.t),
    command: command(report),
  };
}

/** What Kubernetes takes for the names of claims and namespaces. Nothing else gets into a command. */
const NAME = /^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/;

function command(report: Unchecked<Wire.ExplorationReport>): string {
  const [claim, namespace] = [text(report.claim), text(report.namespace)];
  if (!NAME.test(claim) || !NAME.test(namespace)) return "";
  const words = ["kubectl hostloop explore", claim, "-n", namespace];
  const add = (flag: string, value: number | undefined, unit = "") => {
    if (value !== undefined) words.push(flag, `${value}${unit}`);
  };
  const every = number(report.every_ns);
  add("--cuts", number(report.requested));
  add("--every", every && every / 1e6, "ms");
  add("--seed", number(report.seed));
  return [...words, "--check FILE"].join(" ");
}

const COMMON: readonly View[] = ["volumes", "life", "node", "cluster"];

/** The views that have something to show, the first one first. Beside the report of an exploration there is nothing else. */
export function viewsOf(state: State): readonly View[] {
  if (!state.exploration) return COMMON;
  return state.kinds.size === 0 && state.reports.size === 0 ? ["exploration"] : [...COMMON, "exploration"];
}
