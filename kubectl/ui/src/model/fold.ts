/** Applies messages to the state. The same messages in the same order give the same state. */

import { fields, list, text, type Unchecked } from "./json.ts";
import { handle, links } from "./links.ts";
import { lifeKey, livesOfObject, livesOfSpan, volumeLife } from "./lives.ts";
import { parseExtents, type Extent, type Message, type MetricsMessage, type ObjectMessage, type ReportMessage } from "./message.ts";
import { foldEvent } from "./spans.ts";
import { addTo, type ReportFields, type ReportItem, type State, type Tracked, type Version } from "./state.ts";
import { time } from "./text.ts";
import type * as Wire from "./wire.generated.ts";

/** Kinds of which only the newest versions matter: their changes are heartbeats. */
const BRIEF = new Set(["Lease", "Node", "Event", "StorageClass", "CSIStorageCapacity", "CSIDriver"]);
const FIRST_VERSIONS = 8;
const VERSIONS = 64;
const BRIEF_VERSIONS = 4;
const SHARINGS = 32;
const GAPS = 1000;
const LEASE_CHANGES = 100;
/** One hour of values, at one each five seconds. */
const POINTS = 720;
const SERIES = 400;

export function fold(state: State, message: Message): void {
  state.messages += 1;
  state.now = Math.max(state.now, message.t);
  switch (message.type) {
    case "hello":
      state.hello = message;
      state.hellos += 1;
      break;
    case "object":
      foldObject(state, message);
      break;
    case "event": {
      const span = foldEvent(state, message);
      if (span) markAll(state, livesOfSpan(state, span));
      if (span?.kind === "lease") {
        state.leaseChanges.push(span);
        if (state.leaseChanges.length > LEASE_CHANGES) state.leaseChanges.shift();
      }
      break;
    }
    case "gap":
      state.gaps.push({ t: message.t, node: message.node, process: message.process, lost: message.lost });
      if (state.gaps.length > GAPS) state.gaps.shift();
      break;
    case "report":
      foldReport(state, message);
      break;
    case "extents":
      foldExtents(state, message.node, message.volume, message.t, message.extents);
      break;
    case "metrics":
      foldMetrics(state, sourceOf(message), message.t, message.values);
      break;
    case "verdict":
      for (const life of message.lives) {
        if (message.verdict) state.verdicts.set(life, message.verdict);
        else state.verdicts.delete(life);
        state.dirty.add(life);
      }
      break;
    case "problem":
      state.problems.set(message.about, { t: message.t, text: message.text });
      break;
    case "solved":
      state.problems.delete(message.about);
      break;
    case "exploration":
      state.exploration = message.report;
      break;
    case "listed":
      deleteUnlisted(state, message.t);
      break;
  }
}

function markAll(state: State, lives: Iterable<string>): void {
  for (const life of lives) state.dirty.add(life);
}

function foldObject(state: State, message: ObjectMessage): void {
  const name = `${message.kind} ${message.key}`;
  let tracked = state.current.get(name);
  const uid = text(message.object, "metadata", "uid");
  if (tracked && tracked.uid !== uid && uid !== "") {
    // Another object of the same name. The deletion of the former one was not seen.
    if (message.op === "delete") return;
    end(state, tracked, message.t);
    tracked = undefined;
  }
  if (message.op === "delete") {
    if (tracked) end(state, tracked, message.t);
    return;
  }
  if (!tracked) {
    tracked = track(message, uid);
    state.current.set(name, tracked);
    addTo(state.kinds, message.kind, tracked);
    if (uid !== "") state.uids.set(uid, tracked);
  }
  tracked.hello = state.hellos;
  const version = text(message.object, "metadata", "resourceVersion");
  const known = tracked.versions.at(-1);
  if (version !== "" && known?.op === "set" && text(known.object, "metadata", "resourceVersion") === version) return;
  tracked.deleted = undefined;
  addVersion(tracked, { t: message.t, op: "set", object: message.object });
  tracked.object = message.object;
  for (const key of links(message.kind, message.object)) {
    addTo(state.links, key, tracked);
    // A reported volume turns out to be this object's.
    if (key.startsWith(handle(""))) state.dirty.add(lifeKey("volume", key.slice(handle("").length)));
  }
  markAll(state, livesOfObject(state, tracked));
  // A class decides which claims are shown, and often comes after them.
  if (message.kind === "StorageClass") {
    for (const claim of state.kinds.get("PersistentVolumeClaim") ?? []) markAll(state, livesOfObject(state, claim));
  }
}

function track(message: ObjectMessage, uid: string): Tracked {
  return {
    kind: message.kind,
    key: message.key,
    uid,
    versions: [],
    dropped: 0,
    object: message.object,
    created: creation(message),
    deleted: undefined,
    hello: 0,
  };
}

/** Time stamps of objects have whole seconds, so the arrival is more exact if it was soon after. */
function creation(message: ObjectMessage): number {
  const stamp = time(text(message.object, "metadata", "creationTimestamp"));
  return stamp === undefined || Math.abs(message.t - stamp) < 2e6 ? message.t : stamp;
}

function addVersion(tracked: Tracked, version: Version): void {
  tracked.versions.push(version);
  const brief = BRIEF.has(tracked.kind);
  if (tracked.versions.length > (brief ? BRIEF_VERSIONS : VERSIONS)) {
    tracked.versions.splice(brief ? 0 : FIRST_VERSIONS, 1);
    tracked.dropped += 1;
  }
}

function end(state: State, tracked: Tracked, t: number): void {
  if (tracked.deleted !== undefined) return;
  tracked.deleted = t;
  addVersion(tracked, { t, op: "delete", object: tracked.object });
  markAll(state, livesOfObject(state, tracked));
}

/** Ends the objects that a new listing did not have. */
function deleteUnlisted(state: State, t: number): void {
  for (const tracked of state.current.values()) {
    if (tracked.hello < state.hellos) end(state, tracked, t);
  }
}

function foldReport(state: State, { node, t, report }: ReportMessage): void {
  const before = state.reports.get(node)?.items;
  const items = new Map<string, ReportItem>();
  for (const name of ["volumes", "snapshots", "groups"] as const) {
    for (const value of list(report[name])) {
      const item: ReportFields = fields(value);
      const id = text(item.id);
      if (id === "") continue;
      // Older programs sent the map of an image in the report.
      const extents = list(value, "extents");
      if (extents.length > 0) foldExtents(state, node, id, t, parseExtents(extents));
      items.set(id, { list: name, item, json: JSON.stringify(item) });
    }
  }
  const pools = new Map<string, Unchecked<Wire.PoolReport>>();
  for (const value of list(report.pools)) {
    const pool: Unchecked<Wire.PoolReport> = fields(value);
    pools.set(text(pool.name), pool);
  }
  state.reports.set(node, { t, report, items, pools });
  for (const [id, { json }] of items) {
    if (before?.get(id)?.json !== json) state.dirty.add(volumeLife(state, id));
  }
  for (const id of before?.keys() ?? []) if (!items.has(id)) state.dirty.add(volumeLife(state, id));
}

function foldExtents(state: State, node: string, volume: string, t: number, extents: Extent[]): void {
  // The image is gone, or has no blocks yet.
  if (extents.length === 0) {
    state.extents.delete(volume);
    return;
  }
  const sharing = { t, shared: 0, own: 0 };
  for (const extent of extents) {
    if (extent.shared) sharing.shared += extent.len;
    else sharing.own += extent.len;
  }
  const history = state.extents.get(volume)?.history ?? [];
  const last = history.at(-1);
  if (!last || last.shared !== sharing.shared || last.own !== sharing.own) history.push(sharing);
  if (history.length > SHARINGS) history.shift();
  state.extents.set(volume, { node, t, extents, history });
}

/** Where metrics come from: a node, or the controller's process beside it. */
function sourceOf({ node, process }: MetricsMessage): string {
  return process === "controller" ? `${node} ${process}` : node;
}

function foldMetrics(state: State, node: string, t: number, values: unknown): void {
  for (const [name, value] of Object.entries(fields(values))) {
    if (typeof value !== "number" || !Number.isFinite(value)) continue;
    let nodes = state.metrics.get(name);
    if (!nodes) {
      if (state.metrics.size >= SERIES) continue;
      state.metrics.set(name, (nodes = new Map()));
    }
    const series = nodes.get(node) ?? { t: [], value: [] };
    nodes.set(node, series);
    if (series.t.at(-1) === t) continue;
    series.t.push(t);
    series.value.push(value);
    if (series.t.length > POINTS) {
      series.t.shift();
      series.value.shift();
    }
  }
}

/** Forgets what ended before a time. */
export function prune(state: State, before: number): void {
  for (const [kind, all] of state.kinds) {
    for (const tracked of all) {
      if (tracked.deleted === undefined || tracked.deleted >= before) continue;
      all.delete(tracked);
      state.uids.delete(tracked.uid);
      for (const key of links(kind, tracked.object)) {
        const linked = state.links.get(key);
        linked?.delete(tracked);
        if (linked?.size === 0) state.links.delete(key);
      }
      const name = `${kind} ${tracked.key}`;
      if (state.current.get(name) === tracked) state.current.delete(name);
      markAll(state, livesOfObject(state, tracked));
    }
  }
  const old = (span: { t: number; us: number | undefined }) => span.t + (span.us ?? 0) < before;
  for (const [key, span] of state.spans) if (old(span)) state.spans.delete(key);
  for (const index of [state.subjects, state.children]) {
    for (const [key, spans] of index) {
      const first = spans[0];
      if (first === undefined || !old(first)) continue;
      const kept = spans.filter((span) => !old(span));
      if (kept.length === 0) index.delete(key);
      else index.set(key, kept);
    }
  }
}

