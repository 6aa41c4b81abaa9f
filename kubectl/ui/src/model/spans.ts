/** Events of processes as spans, found by trace and by the IDs in requests and answers. */

import { text, texts } from "./json.ts";
import type { EventMessage } from "./message.ts";
import { pushTo, type Span, type State } from "./state.ts";

/** Fields of requests and answers that name a subject. */
const IDS = ["volume_id", "source_volume_id", "snapshot_id", "group_snapshot_id", "name"] as const;
const ID_LISTS = ["source_volume_ids", "snapshot_ids"] as const;

/** The keys under which a span is found. */
export function subjects(span: Span): Set<string> {
  const keys = new Set<string>();
  if (span.trace !== "") keys.add(span.trace);
  for (const fields of [span.request, span.answer]) {
    for (const id of IDS) {
      const value = text(fields, id);
      if (value !== "") keys.add(value);
    }
    for (const ids of ID_LISTS) for (const id of texts(fields, ids)) keys.add(id);
  }
  return keys;
}

export const isCall = (span: Span) => span.kind === "call";

/** The end of a span; for one under way, the given time. */
export function endOf(span: Span, now: number): number {
  return span.us === undefined ? Math.max(now, span.t) : span.t + span.us;
}

/** True if a call or phase has begun and not ended. */
export function underWay(span: Span): boolean {
  return span.us === undefined && span.code === "" && (span.kind === "call" || span.kind === "phase");
}

/** Adds an event, or completes the span that it belongs to. Returns null for a repeated event. */
export function foldEvent(state: State, { node, process, event }: EventMessage): Span | null {
  const stream = `${node}/${process}/${event.boot}`;
  if (event.seq !== undefined) {
    if (event.seq <= (state.sequence.get(stream) ?? -1)) return null;
    state.sequence.set(stream, event.seq);
  }
  // Events of a queue have the ID of the work before or after them, and are never completed.
  const single = event.id === undefined || event.kind === "queue";
  const key = single ? `${stream}@${event.seq ?? state.messages}` : `${stream}#${event.id}`;
  const known = state.spans.get(key);
  if (known) {
    const before = subjects(known);
    Object.assign(known, complete(known, event));
    for (const subject of subjects(known)) if (!before.has(subject)) pushTo(state.subjects, subject, known);
    return known;
  }
  const span: Span = { ...event, node, process, key };
  state.spans.set(key, span);
  if (span.parent !== undefined) pushTo(state.children, `${stream}#${span.parent}`, span);
  for (const subject of subjects(span)) pushTo(state.subjects, subject, span);
  return span;
}

/** The fields of the newer event, without those it does not know. */
function complete(known: Span, event: EventMessage["event"]): Partial<Span> {
  return {
    seq: event.seq,
    t: Math.min(known.t, event.t),
    us: event.us ?? known.us,
    trace: event.trace || known.trace,
    about: event.about || known.about,
    state: event.state || known.state,
    code: event.code || known.code,
    error: event.error || known.error,
    next: event.next ?? known.next,
    request: Object.keys(event.request).length > 0 ? event.request : known.request,
    answer: Object.keys(event.answer).length > 0 ? event.answer : known.answer,
  };
}

/** A span and its phases, phases of phases included. */
export function withChildren(state: State, span: Span): Span[] {
  const all = [span];
  const seen = new Set([span.key]);
  for (let i = 0; i < all.length; i++) {
    for (const child of state.children.get(all[i]!.key) ?? []) {
      if (!seen.has(child.key)) {
        seen.add(child.key);
        all.push(child);
      }
    }
  }
  return all;
}

/** The call that a phase belongs to. */
export function parentOf(state: State, span: Span): Span | undefined {
  if (span.parent === undefined) return undefined;
  return state.spans.get(`${span.node}/${span.process}/${span.boot}#${span.parent}`);
}
