/** What a timeline shows: items in lanes, and lanes in groups. */

import type { Cut, Exploration } from "../model/exploration.ts";
import { text } from "../model/json.ts";
import type { Life } from "../model/lives.ts";
import { endOf, isCall, underWay } from "../model/spans.ts";
import type { Span, State, Tracked, Version } from "../model/state.ts";
import { duration } from "../model/text.ts";
import { waits, type Wait } from "./milestones.ts";
import { steps, type Step } from "./steps.ts";

export type Group = "steps" | "objects" | "controllers" | "calls" | "kernel" | "cuts" | "writes";

export const GROUPS: readonly { group: Group; title: string }[] = [
  { group: "steps", title: "Steps and waits" },
  { group: "objects", title: "Objects" },
  { group: "controllers", title: "Controllers" },
  { group: "calls", title: "CSI calls" },
  { group: "kernel", title: "Kernel and disk" },
  { group: "cuts", title: "Power cuts" },
  { group: "writes", title: "Writes" },
];

export type Tone = "step" | "ok" | "bad" | "busy" | "wait" | "object" | "use";

/** What an item is about, for the details beside the picture. */
export type Detail =
  | { is: "step"; step: Step }
  | { is: "wait"; wait: Wait }
  | { is: "version"; tracked: Tracked; version: Version; before: Version | undefined }
  | { is: "lifetime"; tracked: Tracked }
  | { is: "span"; span: Span }
  | { is: "notice"; tracked: Tracked }
  | { is: "cut"; cut: Cut; exploration: Exploration }
  /** `share` is the part of the most that was written from one cut to the next. */
  | { is: "written"; written: number; share: number };

export interface Item {
  id: string;
  group: Group;
  /** The lane's title; items of one title never overlap unless they have the same start. */
  lane: string;
  t: number;
  end: number;
  /** True for a moment, which has no duration. */
  moment: boolean;
  label: string;
  outcome: string;
  tone: Tone;
  detail: Detail;
}

const SHORT: ReadonlyMap<string, string> = new Map([
  ["PersistentVolumeClaim", "Claim"],
  ["PersistentVolume", "Volume"],
  ["VolumeAttachment", "Attachment"],
  ["VolumeSnapshot", "Snapshot"],
  ["VolumeSnapshotContent", "Content"],
  ["VolumeGroupSnapshot", "Group snapshot"],
  ["VolumeGroupSnapshotContent", "Group content"],
]);

const kindName = (kind: string): string => SHORT.get(kind) ?? kind;

/** All items of a life, by their start. */
export function items(life: Life, state: State, now: number): Item[] {
  const found = [
    ...stepItems(life, now),
    ...waits(life, isLate(life, state), now).map(waitItem),
    ...life.objects.flatMap((tracked) => objectItems(tracked, now)),
    ...life.events.map(noticeItem),
    ...controllerItems(life, now),
    ...callItems(life, now),
  ];
  return found.sort((a, b) => a.t - b.t);
}

/** True if the claim's class waits for a pod. */
function isLate(life: Life, state: State): boolean {
  const name = text(life.main?.object, "spec", "storageClassName");
  return text(state.current.get(`StorageClass ${name}`)?.object, "volumeBindingMode") === "WaitForFirstConsumer";
}

const toneOf = (code: string, open: boolean): Tone => (open ? "busy" : code === "OK" || code === "" ? "ok" : "bad");

function stepItems(life: Life, now: number): Item[] {
  return steps(life.spans, now).map((step, i) => ({
    id: `step ${i}`,
    group: "steps",
    lane: "Steps",
    t: step.t,
    end: step.end,
    moment: false,
    label: step.kind.name,
    outcome: step.code || "under way",
    tone: step.kind.name === "use" ? "use" : step.code === "OK" ? "step" : step.code === "" ? "busy" : "bad",
    detail: { is: "step", step },
  }));
}

function waitItem(wait: Wait, i: number): Item {
  return {
    id: `wait ${i}`,
    group: "steps",
    lane: "Waits for",
    t: wait.t,
    end: wait.end,
    moment: false,
    label: wait.who,
    outcome: `after ${wait.after}`,
    tone: "wait",
    detail: { is: "wait", wait },
  };
}

function objectItems(tracked: Tracked, now: number): Item[] {
  const lane = `${kindName(tracked.kind)} ${tracked.key.slice(tracked.key.indexOf("/") + 1)}`;
  const id = `${tracked.kind} ${tracked.uid || tracked.key}`;
  const found: Item[] = [{
    id,
    group: "objects",
    lane,
    t: tracked.created,
    end: tracked.deleted ?? now,
    moment: false,
    label: kindName(tracked.kind),
    outcome: tracked.deleted === undefined ? "exists" : "deleted",
    tone: "object",
    detail: { is: "lifetime", tracked },
  }];
  for (const [i, version] of tracked.versions.entries()) {
    const before = tracked.versions[i - 1];
    const what = version.op === "delete" ? "deleted" : before ? "changed" : "first seen";
    found.push({
      id: `${id} ${i + (i < 8 ? 0 : tracked.dropped)}`,
      group: "objects",
      lane,
      t: version.t,
      end: version.t,
      moment: true,
      label: `${kindName(tracked.kind)} ${what}`,
      outcome: text(version.object, "status", "phase"),
      tone: version.op === "delete" ? "bad" : "object",
      detail: { is: "version", tracked, version, before },
    });
  }
  return found;
}

function noticeItem(tracked: Tracked): Item {
  const warning = text(tracked.object, "type") === "Warning";
  return {
    id: `Event ${tracked.uid || tracked.key}`,
    group: "objects",
    lane: "Events",
    t: tracked.created,
    end: tracked.created,
    moment: true,
    label: `Event ${text(tracked.object, "reason")}`,
    outcome: text(tracked.object, "message"),
    tone: warning ? "bad" : "ok",
    detail: { is: "notice", tracked },
  };
}

const LASTS = new Set(["queued", "working", "waiting", "backing off"]);

/** Work of the controllers. A state without a duration lasts until the controller's next event. */
function controllerItems(life: Life, now: number): Item[] {
  const spans = life.spans.filter((span) => span.kind === "work" || span.kind === "queue");
  return spans.map((span, i) => {
    const lasts = span.us === undefined && LASTS.has(span.state);
    const next = spans.slice(i + 1).find((later) => later.name === span.name && later.t > span.t);
    const until = Math.min(next?.t ?? now, span.next === undefined ? now : span.t + span.next);
    const end = lasts ? Math.max(until, span.t) : endOf({ ...span, us: span.us ?? 0 }, now);
    return {
      id: span.key,
      group: "controllers",
      lane: span.name || "controller",
      t: span.t,
      end,
      moment: end === span.t,
      label: span.state || span.kind,
      outcome: span.error || (span.next === undefined ? span.code : `next try in ${duration(span.next)}`),
      tone: controllerTone(span),
      detail: { is: "span", span },
    };
  });
}

function controllerTone(span: Span): Tone {
  if (span.state === "failed" || span.error !== "") return "bad";
  if (span.state === "done" || span.code === "OK") return "ok";
  return span.state === "working" || span.kind === "work" ? "busy" : "wait";
}

function callItems(life: Life, now: number): Item[] {
  return life.spans.filter((span) => isCall(span) || span.kind === "phase").map((span) => {
    const open = underWay(span);
    const end = open ? now : endOf({ ...span, us: span.us ?? 0 }, now);
    return {
      id: span.key,
      group: isCall(span) ? "calls" : "kernel",
      lane: isCall(span) ? "Calls" : "Phases",
      t: span.t,
      end,
      moment: end === span.t && !open,
      label: span.name,
      outcome: open ? "under way" : [span.code, span.error].filter((part) => part !== "").join(": "),
      // A call waits for the locks of its objects, and for a thread.
      tone: span.kind === "phase" && span.name === "wait" ? "wait" : toneOf(span.code, open),
      detail: { is: "span", span },
    };
  });
}

export interface Lane {
  group: Group;
  title: string;
  items: Item[];
}

/** Distributes items to lanes. Items that overlap get lanes of their own. */
export function lanes(all: readonly Item[]): Lane[] {
  const found: Lane[] = [];
  for (const { group } of GROUPS) {
    const titles = new Map<string, Lane[]>();
    for (const item of all) {
      if (item.group !== group) continue;
      const stack = titles.get(item.lane) ?? [];
      titles.set(item.lane, stack);
      const moments = item.moment && stack.length > 0;
      const lane = stack.find((l) => moments || free(l, item));
      if (lane) lane.items.push(item);
      else stack.push({ group, title: item.lane, items: [item] });
    }
    for (const stack of titles.values()) found.push(...stack);
  }
  return found;
}

function free(lane: Lane, item: Item): boolean {
  const last = lane.items.findLast((other) => !other.moment);
  return !last || last.end <= item.t;
}

/** The first and the last time of a life. */
export function extent(all: readonly Item[], now: number): [number, number] {
  let from = Number.POSITIVE_INFINITY;
  let to = Number.NEGATIVE_INFINITY;
  for (const item of all) {
    from = Math.min(from, item.t);
    to = Math.max(to, item.end);
  }
  return from > to ? [now - 1e6, now] : [from, Math.max(to, from + 1)];
}
