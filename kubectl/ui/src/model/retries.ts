/** When a controller tries again. */

import type { Span } from "./state.ts";
import { duration } from "./text.ts";

/** The next try as a sentence, if the newest event of a controller says that it backs off. */
export function nextTry(spans: readonly Span[], now: number): string {
  const last = spans.findLast((span) => span.kind === "queue" || span.kind === "work");
  if (last?.next === undefined) return "";
  const left = last.t + last.next - now;
  const who = last.name === "" ? "The controller" : `The ${last.name}`;
  return left > 0 ? `. ${who} tries again in ${duration(left)}` : `. ${who} is about to try again`;
}
