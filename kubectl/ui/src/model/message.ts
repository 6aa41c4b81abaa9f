/**
 * The messages of the stream, and how JSON becomes one. The names of what is sent are those of the
 * Rust definitions; of what is kept, a text that is missing is empty.
 */

import { fields, list, number, text, texts, type Fields, type Unchecked } from "./json.ts";
import type * as Wire from "./wire.generated.ts";

export const STREAM = "hostloop.ui/v1";

export type Hello = Omit<Wire.HelloMessage, "cluster" | "endpoint" | "now"> & Record<"cluster" | "endpoint", string>;

export type ObjectMessage = Required<Wire.ObjectMessage>;

/** The numbers that an event of a process can lack. */
type Numbers = Extract<keyof Wire.ProcessEvent, "seq" | "us" | "id" | "parent" | "next">;

/** What a process did: a call, a phase of a call, a controller's work, or a change of a lease. */
export type ProcessEvent = Required<Omit<Wire.ProcessEvent, Numbers>> & Record<Numbers, number | undefined>;

export type EventMessage = Omit<Wire.EventMessage, "event"> & { event: ProcessEvent };

export type ReportMessage = Omit<Wire.ReportMessage, "report"> & { report: Unchecked<Wire.Report> };

export type Extent = Wire.ReportedRun;

export type MetricsMessage = Omit<Wire.MetricsMessage, "values"> & { values: Fields };

export type ExplorationMessage = Omit<Wire.ExplorationMessage, "report"> & { report: Unchecked<Wire.ExplorationReport> };

/** All objects were sent again. Only older programs say so. */
export interface ListedMessage {
  type: "listed";
  t: number;
}

export type Message =
  | Hello
  | ObjectMessage
  | EventMessage
  | Wire.GapMessage
  | ReportMessage
  | Wire.ExtentsMessage
  | MetricsMessage
  | Wire.VerdictMessage
  | Wire.ProblemMessage
  | Wire.SolvedMessage
  | ExplorationMessage
  | ListedMessage;

/** Turns JSON into a message. Returns null for what this page does not know. */
export function parse(value: unknown): Message | null {
  const t = number(value, "t") ?? number(value, "now") ?? 0;
  const node = text(value, "node");
  switch (text(value, "type") as Message["type"]) {
    case "hello": {
      const sent: Unchecked<Wire.HelloMessage> = fields(value);
      return {
        type: "hello",
        t,
        stream: text(sent.stream),
        version: text(sent.version),
        cluster: text(sent.cluster),
        endpoint: text(sent.endpoint),
        namespace: text(sent.namespace),
        driver: text(sent.driver),
      };
    }
    case "object": {
      const sent: Unchecked<Wire.ObjectMessage> = fields(value);
      const kind = text(sent.kind);
      const key = text(sent.key);
      if (kind === "" || key === "") return null;
      const op = sent.op === "delete" ? "delete" : "set";
      return { type: "object", t, op, kind, key, object: fields(sent.object) };
    }
    case "event": {
      const sent: Unchecked<Wire.EventMessage> = fields(value);
      const event = parseEvent(fields(sent.event));
      return event && { type: "event", t: t || event.t + (event.us ?? 0), node, process: text(sent.process), event };
    }
    case "gap": {
      const sent: Unchecked<Wire.GapMessage> = fields(value);
      return { type: "gap", t, node, process: text(sent.process), lost: number(sent.lost) ?? 0 };
    }
    case "report": {
      const sent: Unchecked<Wire.ReportMessage> = fields(value);
      return { type: "report", t, node, report: fields(sent.report) };
    }
    case "extents": {
      const sent: Unchecked<Wire.ExtentsMessage> = fields(value);
      return { type: "extents", t, node, volume: text(sent.volume), extents: parseExtents(list(sent.extents)) };
    }
    case "metrics": {
      const sent: Unchecked<Wire.MetricsMessage> = fields(value);
      return { type: "metrics", t, node, process: text(sent.process), values: fields(sent.values) };
    }
    case "verdict": {
      const sent: Unchecked<Wire.VerdictMessage> = fields(value);
      return { type: "verdict", t, lives: texts(sent.lives), verdict: parseVerdict(fields(sent.verdict)) };
    }
    case "problem": {
      const sent: Unchecked<Wire.ProblemMessage> = fields(value);
      return { type: "problem", t, about: text(sent.about), text: text(sent.text) };
    }
    case "solved": {
      const sent: Unchecked<Wire.SolvedMessage> = fields(value);
      return { type: "solved", t, about: text(sent.about) };
    }
    case "exploration": {
      const sent: Unchecked<Wire.ExplorationMessage> = fields(value);
      return { type: "exploration", t, report: fields(sent.report) };
    }
    case "listed":
      return { type: "listed", t };
    default:
      return null;
  }
}

function parseEvent(event: Unchecked<Wire.ProcessEvent>): ProcessEvent | null {
  const t = number(event.t);
  const kind = text(event.kind);
  if (t === undefined || kind === "") return null;
  return {
    seq: number(event.seq),
    boot: text(event.boot),
    t,
    us: number(event.us),
    kind,
    name: text(event.name),
    trace: text(event.trace),
    id: number(event.id),
    parent: number(event.parent),
    about: text(event.about),
    state: text(event.state),
    code: text(event.code),
    error: text(event.error),
    next: number(event.next),
    request: fields(event.request),
    answer: fields(event.answer),
  };
}

const TONES: ReadonlySet<unknown> = new Set<Wire.Tone>(["good", "wait", "bad", "gone"]);

/** A verdict; null if there is none, or none that can be read. */
function parseVerdict(verdict: Unchecked<Wire.ShownVerdict>): Wire.ShownVerdict | null {
  const words = text(verdict.words);
  if (words === "" || !TONES.has(verdict.tone)) return null;
  const stuck: Unchecked<Wire.Stuck> = fields(verdict.stuck);
  const why = text(stuck.why);
  return {
    words,
    tone: verdict.tone as Wire.Tone,
    stuck: why === "" ? null : { why, since_ns: number(stuck.since_ns) ?? null },
    note: text(verdict.note) || null,
  };
}

/** Extents with a usable offset and length, in the order of their offsets. */
export function parseExtents(extents: unknown[]): Extent[] {
  const parsed: Extent[] = [];
  for (const value of extents) {
    const extent: Unchecked<Extent> = fields(value);
    const offset = number(extent.offset);
    const len = number(extent.len);
    const physical = number(extent.physical);
    if (offset === undefined || len === undefined || physical === undefined) continue;
    if (offset < 0 || len <= 0 || physical < 0) continue;
    parsed.push({ offset, len, physical, shared: extent.shared === true });
  }
  return parsed.sort((a, b) => a.offset - b.offset);
}
