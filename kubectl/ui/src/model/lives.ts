/**
 * Lives: a claim, a snapshot, a group snapshot, or a volume that has none of them. Their keys are
 * `claim:UID`, `snapshot:UID`, `group:UID` and `volume:ID`.
 */

import { text, texts, type Unchecked } from "./json.ts";
import {
  claimName, claimUid, groupUid, handle, objectUid, podClaims, snapshotUid, volumeName,
} from "./links.ts";
import { isCall, parentOf, subjects, withChildren } from "./spans.ts";
import type { ReportFields, Span, State, Tracked } from "./state.ts";
import type * as Wire from "./wire.generated.ts";

export type LifeKind = "claim" | "snapshot" | "group" | "volume";

const KINDS: ReadonlyMap<string, LifeKind> = new Map([
  ["PersistentVolumeClaim", "claim"],
  ["VolumeSnapshot", "snapshot"],
  ["VolumeGroupSnapshot", "group"],
]);

/** A volume or snapshot in a node's report. */
export interface Reported {
  node: string;
  item: ReportFields;
  pool: Unchecked<Wire.PoolReport>;
}

/** Everything that is known about one life. */
export interface Life {
  key: string;
  kind: LifeKind;
  /** The claim, snapshot or group; undefined for a volume without one. */
  main: Tracked | undefined;
  /** All its objects, the main one first. */
  objects: Tracked[];
  /** Kubernetes events about them. */
  events: Tracked[];
  /** Spans about it, with their phases, by time. */
  spans: Span[];
  /** Volume and snapshot IDs. */
  ids: string[];
  reported: Reported | undefined;
}

export const lifeKey = (kind: LifeKind, id: string) => `${kind}:${id}`;

function own(tracked: Tracked): string | undefined {
  const kind = KINDS.get(tracked.kind);
  return kind && lifeKey(kind, tracked.uid || tracked.key);
}

/** The life of a volume ID: its claim's, or its own. */
export function volumeLife(state: State, id: string): string {
  for (const linked of state.links.get(handle(id)) ?? []) {
    for (const life of livesOfObject(state, linked)) return life;
  }
  return lifeKey("volume", id);
}

function claimsOf(state: State, volume: Tracked): Tracked[] {
  return byUid(state, "PersistentVolumeClaim", text(volume.object, "spec", "claimRef", "uid"));
}

function byUid(state: State, kind: string, uid: string): Tracked[] {
  const found = state.uids.get(uid);
  return found && found.kind === kind ? [found] : [];
}

/** The lives that an object belongs to. */
export function livesOfObject(state: State, tracked: Tracked): Set<string> {
  const lives = new Set<string>();
  const add = (main: Tracked | undefined) => {
    const key = main && own(main);
    if (key !== undefined) lives.add(key);
  };
  const { object, kind } = tracked;
  const namespace = text(object, "metadata", "namespace");
  const claim = (name: string) => add(state.current.get(`PersistentVolumeClaim ${namespace}/${name}`));
  add(tracked);
  switch (kind) {
    case "PersistentVolume":
      claimsOf(state, tracked).forEach(add);
      break;
    case "VolumeAttachment": {
      const volume = state.current.get(`PersistentVolume ${text(object, "spec", "source", "persistentVolumeName")}`);
      if (volume) claimsOf(state, volume).forEach(add);
      break;
    }
    case "Pod":
      podClaims(object).forEach(claim);
      break;
    case "VolumeSnapshot":
      claim(text(object, "spec", "source", "persistentVolumeClaimName"));
      break;
    case "VolumeSnapshotContent":
      byUid(state, "VolumeSnapshot", text(object, "spec", "volumeSnapshotRef", "uid")).forEach(add);
      break;
    case "VolumeGroupSnapshotContent":
      byUid(state, "VolumeGroupSnapshot", text(object, "spec", "volumeGroupSnapshotRef", "uid")).forEach(add);
      break;
    case "Event": {
      const subject = state.uids.get(text(object, "involvedObject", "uid"));
      if (subject && subject.kind !== "Event") {
        for (const life of livesOfObject(state, subject)) lives.add(life);
      }
      break;
    }
    default:
  }
  return lives;
}

/** The lives that a span belongs to. */
export function livesOfSpan(state: State, span: Span): Set<string> {
  const lives = new Set<string>();
  const root = parentOf(state, span) ?? span;
  for (const subject of subjects(root)) {
    const tracked =
      state.uids.get(subject.replace(/^(pvc|snapshot|snapcontent)-/, "")) ??
      state.current.get(`PersistentVolumeClaim ${subject}`) ??
      state.current.get(`PersistentVolume ${subject}`) ??
      state.current.get(`VolumeAttachment ${subject}`) ??
      state.current.get(`VolumeSnapshot ${subject}`);
    if (tracked) for (const life of livesOfObject(state, tracked)) lives.add(life);
    for (const linked of state.links.get(handle(subject)) ?? []) {
      for (const life of livesOfObject(state, linked)) lives.add(life);
    }
  }
  if (lives.size === 0) for (const id of bareVolumes(state, root)) lives.add(lifeKey("volume", id));
  return lives;
}

/** The volume IDs in a call, if there is no Kubernetes: the volumes then have no other name. */
function bareVolumes(state: State, span: Span): string[] {
  if (!isCall(span) || (state.hello?.cluster ?? "") !== "") return [];
  return [text(span.request, "volume_id"), text(span.answer, "volume_id")].filter((id) => id !== "");
}

/** The object or reported volume of a life key; undefined if there is none. */
function mainOf(state: State, key: string): Tracked | undefined {
  const id = key.slice(key.indexOf(":") + 1);
  for (const [kind, name] of KINDS) {
    if (!key.startsWith(`${name}:`)) continue;
    const found = state.uids.get(id) ?? state.current.get(`${kind} ${id}`);
    return found?.kind === kind ? found : undefined;
  }
  return undefined;
}

/** True if both existed at one time. A name can belong to one object after another. */
function overlap(a: Tracked, b: Tracked): boolean {
  const end = (tracked: Tracked) => tracked.deleted ?? Number.POSITIVE_INFINITY;
  // Arrival and time stamps differ by less than two seconds.
  return a.created <= end(b) + 2e6 && b.created <= end(a) + 2e6;
}

/** Collects a life. Returns undefined if nothing of that key is known. */
export function gather(state: State, key: string): Life | undefined {
  const kind = key.slice(0, key.indexOf(":")) as LifeKind;
  const main = mainOf(state, key);
  const id = key.slice(kind.length + 1);
  if (!main && (kind !== "volume" || volumeLife(state, id) !== key)) return undefined;
  const objects = new Set<Tracked>(main ? [main] : []);
  const ids = new Set<string>(kind === "volume" ? [id] : []);
  const names = new Set<string>(kind === "volume" ? [id] : []);
  const linked = (link: string, of?: string) =>
    [...(state.links.get(link) ?? [])].filter((t) => (of === undefined || t.kind === of) && main && overlap(t, main));
  if (main) {
    names.add(main.uid).add(main.key);
    collect(state, main, kind, linked, objects);
  }
  for (const object of objects) {
    const volumeId = text(object.object, "spec", "csi", "volumeHandle");
    const snapshotId = text(object.object, "status", "snapshotHandle");
    const groupId = text(object.object, "status", "volumeGroupSnapshotHandle");
    for (const found of [volumeId, kind === "claim" ? "" : snapshotId, groupId]) if (found !== "") ids.add(found);
    if (object.kind === "PersistentVolume" || object.kind.endsWith("Content")) names.add(object.key);
    if (object.kind === "VolumeAttachment") names.add(object.key);
  }
  for (const found of ids) names.add(found);
  if (kind === "claim" && main) names.add(`pvc-${main.uid}`);
  if (kind === "snapshot" && main) names.add(`snapshot-${main.uid}`).add(`snapcontent-${main.uid}`);
  if (kind === "group" && main) names.add(`groupsnapshot-${main.uid}`);
  const reported = findReported(state, ids, kind === "snapshot" ? "snapshots" : kind === "group" ? "groups" : "volumes");
  if (!main && !reported && !state.subjects.has(id)) return undefined;
  if (!main && reported) {
    names.add(text(reported.item.name)).add(text(reported.item.inline));
    for (const pod of podsOfPaths(state, reported.item)) objects.add(pod);
  }
  names.delete("");
  return {
    key,
    kind,
    main,
    objects: [...objects],
    events: [...objects].flatMap((o) => [...(state.links.get(objectUid(o.uid)) ?? [])]),
    spans: spansOf(state, names),
    ids: [...ids],
    reported,
  };
}

function collect(
  state: State,
  main: Tracked,
  kind: LifeKind,
  linked: (link: string, of?: string) => Tracked[],
  objects: Set<Tracked>,
): void {
  const add = (found: Iterable<Tracked>) => {
    for (const tracked of found) objects.add(tracked);
  };
  const contents = (snapshot: Tracked) => linked(snapshotUid(snapshot.uid), "VolumeSnapshotContent");
  if (kind === "claim") {
    const volumes = new Set(linked(claimUid(main.uid), "PersistentVolume"));
    const bound = state.current.get(`PersistentVolume ${text(main.object, "spec", "volumeName")}`);
    if (bound) volumes.add(bound);
    add(volumes);
    for (const volume of volumes) add(linked(volumeName(volume.key), "VolumeAttachment"));
    const users = linked(claimName(text(main.object, "metadata", "namespace"), text(main.object, "metadata", "name")));
    add(users);
    for (const user of users) if (user.kind === "VolumeSnapshot") add(contents(user));
  }
  if (kind === "snapshot") add(contents(main));
  if (kind === "group") {
    add(linked(groupUid(main.uid)));
    for (const member of linked(groupUid(main.uid), "VolumeSnapshot")) add(contents(member));
  }
}

/** The item of a report with one of these IDs. */
function findReported(state: State, ids: Iterable<string>, name: string): Reported | undefined {
  for (const id of ids) {
    for (const [node, { items, pools }] of state.reports) {
      const found = items.get(id);
      if (found?.list === name) {
        return { node, item: found.item, pool: pools.get(text(found.item.pool)) ?? {} };
      }
    }
  }
  return undefined;
}

/** The pods in which a volume is mounted, by the UIDs in kubelet's paths. */
function podsOfPaths(state: State, item: ReportFields): Tracked[] {
  const pods = new Set<Tracked>();
  for (const path of texts(item.mounts)) {
    const pod = state.uids.get(podUid(path));
    if (pod?.kind === "Pod") pods.add(pod);
  }
  return [...pods];
}

/** The pod UID in a path of kubelet, such as `/var/lib/kubelet/pods/UID/volumes/…`. */
export function podUid(path: string): string {
  return /\/pods\/([0-9a-f-]{36})\//.exec(path)?.[1] ?? "";
}

function spansOf(state: State, names: ReadonlySet<string>): Span[] {
  const spans = new Set<Span>();
  for (const name of names) {
    for (const span of state.subjects.get(name) ?? []) {
      for (const part of withChildren(state, span)) spans.add(part);
    }
  }
  return [...spans].sort((a, b) => a.t - b.t || (isCall(a) ? -1 : 1) - (isCall(b) ? -1 : 1));
}

/** The keys of all lives that are known. */
export function allLives(state: State): string[] {
  const keys: string[] = [];
  for (const kind of KINDS.keys()) {
    for (const tracked of state.kinds.get(kind) ?? []) keys.push(own(tracked)!);
  }
  for (const { items } of state.reports.values()) {
    for (const [id, { list }] of items) {
      const key = list === "volumes" ? volumeLife(state, id) : "";
      if (key.startsWith("volume:")) keys.push(key);
    }
  }
  for (const span of state.spans.values()) {
    for (const id of bareVolumes(state, span)) keys.push(volumeLife(state, id));
  }
  return keys;
}

