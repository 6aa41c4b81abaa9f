/**
 * The state of a life in words. The program judges what is stuck, as for `status` and `check`; the
 * page adds what it sees under way, and what exists no more.
 */

import { nextTry } from "./retries.ts";
import type { Life } from "./lives.ts";
import { isCall, underWay } from "./spans.ts";
import type { State } from "./state.ts";
import { age } from "./text.ts";
import type * as Wire from "./wire.generated.ts";

export type Tone = Wire.Tone | "busy";

export interface Verdict {
  word: string;
  tone: Tone;
  /** Why it is in this state, in a sentence; may be empty. */
  reason: string;
  stuck: boolean;
}

export function verdictOf(life: Life, state: State, now: number): Verdict {
  const said = state.verdicts.get(life.key);
  if (!said) return { ...unsaid(life), stuck: false };
  if (said.stuck) return { word: said.words, tone: said.tone, reason: reasonOf(said.stuck, life, now), stuck: true };
  const call = life.spans.find((span) => isCall(span) && underWay(span));
  if (call) return { word: said.words, tone: "busy", reason: `${call.name} is under way.`, stuck: false };
  return { word: said.words, tone: said.tone, reason: said.note ?? "", stuck: false };
}

/** Why it is stuck, for how long, and when the next try is. */
function reasonOf({ why, since_ns }: Wire.Stuck, life: Life, now: number): string {
  const since = since_ns === null ? "" : ` (${age(since_ns / 1e3, now)} ago)`;
  return `${why}${since}${nextTry(life.spans, now)}`;
}

/** The calls that end a volume, or a snapshot that has no object. */
const LAST = ["DeleteVolume", "DeleteSnapshot"];

/** The state of a life without a verdict. */
function unsaid(life: Life): Omit<Verdict, "stuck"> {
  const last = life.spans.findLast((span) => isCall(span) && span.code === "OK");
  if (life.main?.deleted !== undefined || (life.kind === "volume" && LAST.includes(last?.name ?? ""))) {
    return { word: "Deleted", tone: "gone", reason: "" };
  }
  if (life.kind !== "volume") return { word: "Unknown", tone: "wait", reason: "" };
  return { word: "Exists", tone: "good", reason: life.reported ? "" : "No report of the node has it yet." };
}
