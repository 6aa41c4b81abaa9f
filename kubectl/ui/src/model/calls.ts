/** The last outcome of each kind of call, which shows what works and what fails. */

import { duration } from "./text.ts";
import type { Span } from "./state.ts";

/** What undoes a call: its success makes an earlier failure meaningless. */
const UNDONE_BY: ReadonlyMap<string, string> = new Map([
  ["CreateVolume", "DeleteVolume"],
  ["ControllerPublishVolume", "ControllerUnpublishVolume"],
  ["NodeStageVolume", "NodeUnstageVolume"],
  ["NodePublishVolume", "NodeUnpublishVolume"],
  ["CreateSnapshot", "DeleteSnapshot"],
]);

/** Codes that ask the caller to try again, and mostly pass. */
const PASSING = new Set(["ABORTED", "UNAVAILABLE", "CANCELLED", "CANCELED", "DEADLINE_EXCEEDED"]);
const PASSING_TRIES = 3;

export interface Failure {
  span: Span;
  /** When the first call of this row of failures began. */
  since: number;
  tries: number;
}

/** The newest failure that no later success of the same call, or of what undoes it, has settled. */
export function unsettledFailure(calls: readonly Span[]): Failure | undefined {
  const failures = new Map<string, Failure>();
  for (const span of calls) {
    if (span.code === "") continue;
    if (span.code !== "OK") {
      const known = failures.get(span.name);
      failures.set(span.name, { span, since: known?.since ?? span.t, tries: (known?.tries ?? 0) + 1 });
      continue;
    }
    failures.delete(span.name);
    for (const [call, undo] of UNDONE_BY) if (undo === span.name) failures.delete(call);
  }
  const lasting = [...failures.values()].filter((f) => !PASSING.has(f.span.code) || f.tries >= PASSING_TRIES);
  return lasting.sort((a, b) => b.span.t - a.span.t)[0];
}

/** The failure in words. */
export function failureText(failure: Failure, queue: readonly Span[], now: number): string {
  const { span, tries } = failure;
  const times = tries > 1 ? ` ${tries} times` : "";
  const error = span.error === "" ? "" : `: ${span.error}`;
  return `${span.name} failed${times} with ${span.code}${error}${nextTry(queue, span.t, now)}`;
}

/** When the next try is, by the newest event of a queue that backs off. */
function nextTry(queue: readonly Span[], after: number, now: number): string {
  const last = queue.filter((span) => span.t >= after && span.next !== undefined).at(-1);
  if (!last) return "";
  const left = last.t + last.next! - now;
  const who = last.name === "" ? "The controller" : `The ${last.name}`;
  return left > 0 ? `. ${who} tries again in ${duration(left)}` : `. ${who} is about to try again`;
}
