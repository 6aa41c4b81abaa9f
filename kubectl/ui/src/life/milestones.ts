/** The moments at which one program has finished and another must act. */

import { at, text } from "../model/json.ts";
import type { Life } from "../model/lives.ts";
import { endOf, isCall } from "../model/spans.ts";
import type { Tracked } from "../model/state.ts";
import type { Fields } from "../model/json.ts";

const SCHEDULER = "kube-scheduler";
const KUBELET = "kubelet";
const MANAGER = "kube-controller-manager";
const USER = "the user";
const PROVISIONER = "hostloop (provisioner)";
const ATTACHER = "hostloop (attacher)";
const SNAPSHOTTER = "hostloop (snapshotter)";
const SNAPSHOT_CONTROLLER = "hostloop (snapshot-controller)";

export interface Milestone {
  t: number;
  what: string;
  /** Who acts next; empty if all is done. */
  next: string;
}

/** A time in which no call of this life was under way, and who was waited for. */
export interface Wait {
  t: number;
  end: number;
  who: string;
  /** What had happened before. */
  after: string;
}

interface Facts {
  /** The claim waits for a pod before its volume is made. */
  late: boolean;
  /** The driver needs VolumeAttachments. */
  attaches: boolean;
  pods: boolean;
}

/** What the change from one version of an object to the next means. `after` is undefined for a deletion. */
export function transition(
  kind: string, before: Fields | undefined, after: Fields | undefined, facts: Facts,
): Omit<Milestone, "t">[] {
  const found: Omit<Milestone, "t">[] = [];
  const add = (condition: boolean, what: string, next: string) => {
    if (condition) found.push({ what, next });
  };
  const became = (...path: string[]) => text(before, ...path) === "" && text(after, ...path) !== "";
  const is = (value: unknown, ...path: string[]) => at(before, ...path) !== value && at(after, ...path) === value;
  const created = before === undefined;
  const deleted = after === undefined;
  const terminating = became("metadata", "deletionTimestamp");
  switch (kind) {
    case "PersistentVolumeClaim":
      add(created, "the claim was created", facts.late ? USER : PROVISIONER);
      add(became("metadata", "annotations", "volume.kubernetes.io/selected-node"), "the scheduler chose a node", PROVISIONER);
      add(is("Bound", "status", "phase"), "the claim was bound", facts.pods ? SCHEDULER : USER);
      add(terminating, "the claim's deletion was requested", MANAGER);
      add(deleted, "the claim was deleted", MANAGER);
      break;
    case "PersistentVolume":
      add(created, "the PersistentVolume was created", MANAGER);
      add(is("Released", "status", "phase"), "the PersistentVolume was released", PROVISIONER);
      add(terminating, "the PersistentVolume's deletion was requested", PROVISIONER);
      add(deleted, "the PersistentVolume was deleted", "");
      break;
    case "Pod":
      add(created, "a pod was created", SCHEDULER);
      add(became("spec", "nodeName"), "the pod got its node", facts.attaches ? MANAGER : KUBELET);
      add(is("Running", "status", "phase"), "the pod runs", "");
      add(terminating, "the pod's deletion was requested", KUBELET);
      add(deleted, "the pod was deleted", KUBELET);
      break;
    case "VolumeAttachment":
      add(created, "the VolumeAttachment was created", ATTACHER);
      add(is(true, "status", "attached"), "the volume was attached", KUBELET);
      add(terminating, "the VolumeAttachment's deletion was requested", ATTACHER);
      add(deleted, "the VolumeAttachment was deleted", "");
      break;
    case "VolumeSnapshot":
      add(created, "the snapshot was created", SNAPSHOT_CONTROLLER);
      add(is(true, "status", "readyToUse"), "the snapshot was ready", "");
      add(terminating, "the snapshot's deletion was requested", SNAPSHOT_CONTROLLER);
      add(deleted, "the snapshot was deleted", "");
      break;
    case "VolumeSnapshotContent":
      add(created, "the snapshot's content was created", SNAPSHOTTER);
      add(is(true, "status", "readyToUse"), "the content was ready", SNAPSHOT_CONTROLLER);
      add(terminating, "the content's deletion was requested", SNAPSHOTTER);
      add(deleted, "the content was deleted", SNAPSHOT_CONTROLLER);
      break;
    default:
  }
  return found;
}

/** Who acts after a call. */
function afterCall(method: string, ok: boolean, attaches: boolean): string {
  if (!ok) return method.startsWith("Node") ? `${KUBELET} (tries again)` : "hostloop (backs off)";
  switch (method) {
    case "CreateVolume":
    case "DeleteVolume":
      return PROVISIONER;
    case "ControllerPublishVolume":
    case "ControllerUnpublishVolume":
      return ATTACHER;
    case "NodeUnstageVolume":
      return attaches ? MANAGER : "";
    case "CreateSnapshot":
    case "DeleteSnapshot":
      return SNAPSHOTTER;
    default:
      return method.startsWith("Node") ? KUBELET : "";
  }
}

/** The milestones of a life, by time. */
export function milestones(life: Life, late: boolean): Milestone[] {
  const facts = {
    late,
    attaches: life.objects.some((o) => o.kind === "VolumeAttachment"),
    pods: life.objects.some((o) => o.kind === "Pod"),
  };
  const found: Milestone[] = [];
  for (const tracked of life.objects) {
    if (life.kind !== "claim" || !tracked.kind.startsWith("VolumeSnapshot")) found.push(...ofObject(tracked, facts));
  }
  for (const span of life.spans) {
    if (!isCall(span) || span.us === undefined) continue;
    const ok = span.code === "OK";
    const what = `${span.name} ${ok ? "succeeded" : `failed with ${span.code}`}`;
    found.push({ t: endOf(span, 0), what, next: afterCall(span.name, ok, facts.attaches) });
  }
  return found.sort((a, b) => a.t - b.t);
}

function ofObject(tracked: Tracked, facts: Facts): Milestone[] {
  const found: Milestone[] = [];
  let before: Fields | undefined;
  for (const [i, version] of tracked.versions.entries()) {
    const after = version.op === "set" ? version.object : undefined;
    const t = i === 0 ? tracked.created : version.t;
    for (const milestone of transition(tracked.kind, before, after, facts)) found.push({ t, ...milestone });
    before = after;
  }
  return found;
}

/** The waits between the milestones, without the times of calls. An open wait ends now. */
export function waits(life: Life, late: boolean, now: number): Wait[] {
  const marks = milestones(life, late);
  const calls = life.spans.filter(isCall).map((span) => ({ t: span.t, end: endOf(span, now) }));
  const found: Wait[] = [];
  for (const [i, mark] of marks.entries()) {
    if (mark.next === "") continue;
    const end = marks[i + 1]?.t ?? now;
    for (const part of without(mark.t, end, calls)) {
      const last = found.at(-1);
      if (last && last.who === mark.next && last.end === part.t) last.end = part.end;
      else found.push({ ...part, who: mark.next, after: mark.what });
    }
  }
  return found;
}

interface Interval {
  t: number;
  end: number;
}

/** The parts of an interval outside others, which are in the order of their starts. */
export function without(t: number, end: number, others: readonly Interval[]): Interval[] {
  const parts: Interval[] = [];
  let from = t;
  for (const other of others) {
    if (other.end <= from) continue;
    if (other.t >= end) break;
    if (other.t > from) parts.push({ t: from, end: other.t });
    from = Math.max(from, other.end);
  }
  if (from < end) parts.push({ t: from, end });
  return parts;
}
