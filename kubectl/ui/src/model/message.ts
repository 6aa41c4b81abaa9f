/** The messages of the stream, and how JSON becomes one. */

import { fields, list, number, text, type Fields } from "./json.ts";

export const STREAM = "hostloop.ui/v1";

export interface Hello {
  type: "hello";
  t: number;
  stream: string;
  version: string;
  cluster: string;
  endpoint: string;
  namespace: string;
  /** The driver's name; empty for the usual one. */
  driver: string;
}

export interface ObjectMessage {
  type: "object";
  t: number;
  op: "set" | "delete";
  kind: string;
  key: string;
  object: Fields;
}

/** What a process did: a call, a phase of a call, a controller's work, or a change of a lease. */
export interface ProcessEvent {
  seq: number | undefined;
  boot: string;
  t: number;
  us: number | undefined;
  kind: string;
  name: string;
  trace: string;
  id: number | undefined;
  parent: number | undefined;
  about: string;
  state: string;
  code: string;
  error: string;
  next: number | undefined;
  request: Fields;
  answer: Fields;
}

export interface EventMessage {
  type: "event";
  t: number;
  node: string;
  process: string;
  event: ProcessEvent;
}

export interface GapMessage {
  type: "gap";
  t: number;
  node: string;
  process: string;
  lost: number;
}

export interface ReportMessage {
  type: "report";
  t: number;
  node: string;
  report: Fields;
}

export interface Extent {
  offset: number;
  len: number;
  physical: number;
  shared: boolean;
}

export interface ExtentsMessage {
  type: "extents";
  t: number;
  node: string;
  volume: string;
  extents: Extent[];
}

export interface MetricsMessage {
  type: "metrics";
  t: number;
  node: string;
  process: string;
  values: Fields;
}

export interface ProblemMessage {
  type: "problem" | "solved";
  t: number;
  about: string;
  text: string;
}

export interface ListedMessage {
  type: "listed";
  t: number;
}

export type Message =
  | Hello
  | ObjectMessage
  | EventMessage
  | GapMessage
  | ReportMessage
  | ExtentsMessage
  | MetricsMessage
  | ProblemMessage
  | ListedMessage;

/** Turns JSON into a message. Returns null for what this page does not know. */
export function parse(value: unknown): Message | null {
  const t = number(value, "t") ?? number(value, "now") ?? 0;
  const node = text(value, "node");
  switch (text(value, "type")) {
    case "hello":
      return {
        type: "hello",
        t,
        stream: text(value, "stream"),
        version: text(value, "version"),
        cluster: text(value, "cluster"),
        endpoint: text(value, "endpoint"),
        namespace: text(value, "namespace"),
        driver: text(value, "driver"),
      };
    case "object": {
      const kind = text(value, "kind");
      const key = text(value, "key");
      if (kind === "" || key === "") return null;
      const op = text(value, "op") === "delete" ? "delete" : "set";
      return { type: "object", t, op, kind, key, object: fields(value, "object") };
    }
    case "event": {
      const event = parseEvent(fields(value, "event"));
      const process = text(value, "process");
      return event && { type: "event", t: t || event.t + (event.us ?? 0), node, process, event };
    }
    case "gap":
      return { type: "gap", t, node, process: text(value, "process"), lost: number(value, "lost") ?? 0 };
    case "report":
      return { type: "report", t, node, report: fields(value, "report") };
    case "extents": {
      const volume = text(value, "volume");
      return { type: "extents", t, node, volume, extents: parseExtents(list(value, "extents")) };
    }
    case "metrics":
      return { type: "metrics", t, node, process: text(value, "process"), values: fields(value, "values") };
    case "problem":
    case "solved": {
      const type = text(value, "type") === "problem" ? "problem" : "solved";
      return { type, t, about: text(value, "about"), text: text(value, "text") };
    }
    case "listed":
      return { type: "listed", t };
    default:
      return null;
  }
}

function parseEvent(event: Fields): ProcessEvent | null {
  const t = number(event, "t");
  const kind = text(event, "kind");
  if (t === undefined || kind === "") return null;
  return {
    seq: number(event, "seq"),
    boot: text(event, "boot"),
    t,
    us: number(event, "us"),
    kind,
    name: text(event, "name"),
    trace: text(event, "trace"),
    id: number(event, "id"),
    parent: number(event, "parent"),
    about: text(event, "about"),
    state: text(event, "state"),
    code: text(event, "code"),
    error: text(event, "error"),
    next: number(event, "next"),
    request: fields(event, "request"),
    answer: fields(event, "answer"),
  };
}

/** Extents with a usable offset and length, in the order of their offsets. */
export function parseExtents(extents: unknown[]): Extent[] {
  const parsed: Extent[] = [];
  for (const extent of extents) {
    const offset = number(extent, "offset");
    const len = number(extent, "len");
    const physical = number(extent, "physical");
    if (offset === undefined || len === undefined || physical === undefined) continue;
    if (offset < 0 || len <= 0 || physical < 0) continue;
    parsed.push({ offset, len, physical, shared: fields(extent)["shared"] === true });
  }
  return parsed.sort((a, b) => a.offset - b.offset);
}
