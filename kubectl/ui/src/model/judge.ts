/** The state of a life in words, and why it is stuck. */

import { failureText, unsettledFailure } from "./calls.ts";
import { at, list, number, text, texts } from "./json.ts";
import type { Life } from "./lives.ts";
import { isCall, underWay } from "./spans.ts";
import { existing, type State, type Tracked } from "./state.ts";
import { bytes, duration, quantity, time } from "./text.ts";

export type Tone = "good" | "busy" | "wait" | "bad" | "gone";

export interface Verdict {
  word: string;
  tone: Tone;
  /** Why it is in this state, in a sentence; may be empty. */
  reason: string;
  /** Who must act next; empty if the wait has ended. */
  waits: string;
  stuck: boolean;
}

/** How long a wait for another program is not worth a remark: as for `status` and `check`. */
const PATIENCE = 120e6;
/** A freeze lasts seconds. */
const LONG_FREEZE = 60e6;

type Rule = (life: Life, state: State, now: number) => Verdict | undefined;

const verdict = (word: string, tone: Tone, reason = "", waits = ""): Verdict => ({
  word, tone, reason, waits, stuck: tone === "bad",
});

/** A wait that becomes stuck after a time. */
function waiting(word: string, since: number, now: number, reason: string, waits: string, patience = PATIENCE): Verdict {
  const late = now - since > patience;
  const lasting = late ? `${reason} (for ${duration(now - since)})` : reason;
  return { word, tone: late ? "bad" : "wait", reason: lasting, waits, stuck: late };
}

export function judge(life: Life, state: State, now: number): Verdict {
  const rules = life.kind === "claim" ? CLAIM : life.kind === "volume" ? VOLUME : SNAPSHOT;
  for (const rule of rules) {
    const found = rule(life, state, now);
    if (found) return found;
  }
  return verdict("Unknown", "wait");
}

const alive = (life: Life, kind: string): Tracked[] =>
  life.objects.filter((o) => o.kind === kind && o.deleted === undefined);

const deletion = (tracked: Tracked): number | undefined =>
  time(text(tracked.object, "metadata", "deletionTimestamp"));

const shortName = (tracked: Tracked) => tracked.key.slice(tracked.key.indexOf("/") + 1);

const failedCall: Rule = (life, _state, now) => {
  const failure = unsettledFailure(life.spans.filter(isCall));
  if (!failure || !matters(failure.span.name, life)) return undefined;
  const queue = life.spans.filter((span) => span.kind === "queue" || span.kind === "work");
  return verdict(`${failure.span.name} fails`, "bad", failureText(failure, queue, now), "hostloop");
};

/** A failure matters only while an object still needs the call. */
function matters(method: string, life: Life): boolean {
  if (life.kind !== "claim") return true;
  const pods = alive(life, "Pod").length > 0;
  switch (method) {
    case "NodeStageVolume":
    case "NodePublishVolume":
    case "NodeExpandVolume":
      return pods;
    case "CreateVolume":
      return text(life.main?.object, "status", "phase") !== "Bound" && life.main?.deleted === undefined;
    case "ControllerPublishVolume":
    case "ControllerUnpublishVolume":
      return alive(life, "VolumeAttachment").length > 0;
    case "CreateSnapshot":
      return alive(life, "VolumeSnapshot").some((s) => at(s.object, "status", "readyToUse") !== true);
    case "DeleteVolume":
      return alive(life, "PersistentVolume").length > 0;
    default:
      return !method.startsWith("NodeGet") && !method.startsWith("ValidateVolume");
  }
}

const attachmentError: Rule = (life) => {
  for (const attachment of alive(life, "VolumeAttachment")) {
    const node = text(attachment.object, "spec", "nodeName");
    for (const [field, word] of [["attachError", "Attach"], ["detachError", "Detach"]] as const) {
      const message = text(attachment.object, "status", field, "message");
      if (message !== "") return verdict(`${word} fails`, "bad", `${word} at node ${node}: ${message}`, "the attacher");
    }
  }
  return undefined;
};

/** A warning about objects of some kinds that is newer than their last good news. */
function warning(life: Life, kinds: readonly string[], reasons: RegExp): Tracked | undefined {
  const found = life.events.filter(({ object }) =>
    text(object, "type") === "Warning" && reasons.test(text(object, "reason")) &&
    kinds.includes(text(object, "involvedObject", "kind")));
  return found.sort((a, b) => seen(b) - seen(a))[0];
}

const seen = ({ object, created }: Tracked): number =>
  time(text(object, "lastTimestamp")) ?? time(text(object, "eventTime")) ?? created;

const claimGone: Rule = (life, _state, now) => {
  const claim = life.main!;
  if (claim.deleted === undefined) return undefined;
  for (const volume of alive(life, "PersistentVolume")) {
    if (text(volume.object, "spec", "persistentVolumeReclaimPolicy") === "Retain") {
      return verdict("Deleted", "gone", `PersistentVolume ${volume.key} is retained.`);
    }
    return waiting("Deleting", claim.deleted, now, `PersistentVolume ${volume.key} still exists`, "hostloop (provisioner)");
  }
  return verdict("Deleted", "gone");
};

const claimLost: Rule = (life) =>
  text(life.main!.object, "status", "phase") === "Lost"
    ? verdict("Lost", "bad", `PersistentVolume ${text(life.main!.object, "spec", "volumeName")} does not exist any more.`)
    : undefined;

const claimTerminating: Rule = (life, _state, now) => {
  const since = deletion(life.main!);
  if (since === undefined) return undefined;
  const pods = alive(life, "Pod");
  if (pods.length > 0) {
    const names = pods.slice(0, 3).map(shortName).join(", ");
    return waiting("Terminating", since, now, `The claim stays until no pod uses it: ${names}`, "the user");
  }
  const finalizers = texts(life.main!.object, "metadata", "finalizers").join(", ");
  return waiting("Terminating", since, now, `The claim has finalizers: ${finalizers}`, "kube-controller-manager");
};

const claimPending: Rule = (life, state, now) => {
  const claim = life.main!;
  if (text(claim.object, "status", "phase") === "Bound") return undefined;
  if (life.spans.some((span) => span.name === "CreateVolume" && underWay(span))) {
    return verdict("Provisioning", "busy", "CreateVolume is under way.", "hostloop");
  }
  const bad = warning(life, ["PersistentVolumeClaim"], /Fail|Error|Invalid/);
  if (bad) return verdict("Pending", "bad", text(bad.object, "message"), text(bad.object, "source", "component"));
  const className = text(claim.object, "spec", "storageClassName");
  const storageClass = state.current.get(`StorageClass ${className}`);
  const classes = existing(state, "StorageClass").length > 0;
  if (className !== "" && (storageClass ? storageClass.deleted !== undefined : classes)) {
    return verdict("Pending", "bad", `StorageClass ${className} does not exist.`, "the user");
  }
  const late = text(storageClass?.object, "volumeBindingMode") === "WaitForFirstConsumer";
  const node = text(claim.object, "metadata", "annotations", "volume.kubernetes.io/selected-node");
  if (late && node === "") {
    const pod = alive(life, "Pod")[0];
    if (!pod) return verdict("Waiting", "wait", "The claim waits for the first pod that uses it.", "the user");
    const message = scheduling(pod);
    if (message !== "") return verdict("Unschedulable", "bad", `Pod ${shortName(pod)}: ${message}`, "kube-scheduler");
    return waiting("Scheduling", pod.created, now, `The scheduler has not chosen a node for pod ${shortName(pod)}`, "kube-scheduler");
  }
  const created = life.spans.some((span) => span.name === "CreateVolume" && span.code === "OK");
  return created
    ? waiting("Binding", claim.created, now, "The volume exists, and the claim is not bound to it", "kube-controller-manager")
    : waiting("Pending", claim.created, now, "The claim waits for its volume", "hostloop (provisioner)");
};

/** Why the scheduler has no node for the pod. */
function scheduling(pod: Tracked): string {
  const condition = list(pod.object, "status", "conditions").find((c) => text(c, "type") === "PodScheduled");
  return text(condition, "status") === "False" ? text(condition, "message") || text(condition, "reason") : "";
}

const claimResize: Rule = (life) => {
  const claim = life.main!;
  for (const condition of list(claim.object, "status", "conditions")) {
    if (/ResizeError$/.test(text(condition, "type")) && text(condition, "status") === "True") {
      return verdict("Resize fails", "bad", text(condition, "message"), "hostloop (resizer)");
    }
  }
  const infeasible = text(claim.object, "status", "allocatedResourceStatuses", "storage");
  if (infeasible.endsWith("Infeasible")) {
    return verdict("Resize fails", "bad", "The requested size is not feasible for the driver.", "the user");
  }
  const wanted = quantity(text(claim.object, "spec", "resources", "requests", "storage"));
  const got = quantity(text(claim.object, "status", "capacity", "storage"));
  if (wanted === undefined || got === undefined || wanted <= got) return undefined;
  return verdict("Resizing", "busy", `It grows from ${bytes(got)} to ${bytes(wanted)}.`, "hostloop (resizer)");
};

const frozen: Rule = (life, _state, now) => {
  const ns = number(life.reported?.item, "frozen_since_ns");
  if (ns === undefined) return undefined;
  return waiting("Frozen", ns / 1e3, now, "The filesystem is frozen for a snapshot", "hostloop", LONG_FREEZE);
};

const poolMissing: Rule = (life) => {
  const pool = life.reported?.pool;
  if (text(pool, "state") !== "missing") return undefined;
  return verdict("Pool missing", "bad", `Pool ${text(pool, "name")}: ${text(pool, "why")}`, "the administrator");
};

const podMount: Rule = (life, _state, now) => {
  const pod = alive(life, "Pod").find((p) => text(p.object, "status", "phase") === "Pending");
  if (!pod) return undefined;
  const name = shortName(pod);
  const message = scheduling(pod);
  if (message !== "") return verdict("Unschedulable", "bad", `Pod ${name}: ${message}`, "kube-scheduler");
  const under = life.spans.find((span) => isCall(span) && underWay(span));
  if (under) return verdict("Mounting", "busy", `${under.name} is under way.`, "hostloop");
  const published = life.spans.filter((span) => span.name === "NodePublishVolume" && span.code === "OK").at(-1);
  const bad = warning(life, ["Pod"], /^Failed(Mount|AttachVolume)/);
  if (bad && !(published && published.t > seen(bad) - 1e6)) {
    return verdict("Mount fails", "bad", `Pod ${name}: ${text(bad.object, "message")}`, "kubelet");
  }
  return published
    ? verdict("Starting", "busy", `Pod ${name} has the volume and starts its containers.`, "kubelet")
    : waiting("Mounting", pod.created, now, `Pod ${name} waits for the volume`, "kubelet");
};

const used: Rule = (life) => {
  const pods = alive(life, "Pod").filter((p) => text(p.object, "status", "phase") === "Running");
  const names = pods.slice(0, 3).map(shortName).join(", ");
  if (pods.length > 0) return verdict("In use", "good", `By ${names}${pods.length > 3 ? " and others" : ""}.`);
  const mounts = texts(life.reported?.item, "mounts");
  if (text(life.reported?.item, "staged_at") !== "" || mounts.length > 0) return verdict("Staged", "good");
  if (life.kind === "claim") return verdict("Bound", "good");
  return life.reported ? verdict("Idle", "good") : undefined;
};

const volumeUnreported: Rule = (life) => {
  if (life.reported) return undefined;
  const last = life.spans.findLast((span) => isCall(span) && span.code === "OK");
  if (last?.name === "DeleteVolume") return verdict("Deleted", "gone");
  return verdict("Exists", "good", "No report of the node has it yet.");
};

const snapshotGone: Rule = (life, _state, now) => {
  const snapshot = life.main!;
  if (snapshot.deleted === undefined) return undefined;
  const content = life.objects.find((o) => o.kind.endsWith("Content") && o.deleted === undefined);
  if (!content || text(content.object, "spec", "deletionPolicy") === "Retain") return verdict("Deleted", "gone");
  return waiting("Deleting", snapshot.deleted, now, `Content ${content.key} still exists`, "hostloop (snapshotter)");
};

const snapshotError: Rule = (life) => {
  for (const object of life.objects) {
    const message = text(object.object, "status", "error", "message");
    if (object.deleted === undefined && message !== "" && at(object.object, "status", "readyToUse") !== true) {
      return verdict("Error", "bad", message, "hostloop (snapshotter)");
    }
  }
  return undefined;
};

const snapshotState: Rule = (life, _state, now) => {
  const snapshot = life.main!;
  const since = deletion(snapshot);
  if (since !== undefined) {
    const finalizers = texts(snapshot.object, "metadata", "finalizers").join(", ");
    return waiting("Terminating", since, now, `It has finalizers: ${finalizers}`, "the snapshot controller");
  }
  if (at(snapshot.object, "status", "readyToUse") === true) return verdict("Ready", "good");
  return waiting("Creating", snapshot.created, now, "The snapshot is not ready", "hostloop (snapshotter)");
};

const CLAIM: readonly Rule[] = [
  poolMissing, claimGone, failedCall, claimLost, attachmentError, claimTerminating, claimPending, claimResize,
  frozen, podMount, used,
];
const SNAPSHOT: readonly Rule[] = [snapshotGone, failedCall, snapshotError, snapshotState];
const VOLUME: readonly Rule[] = [failedCall, volumeUnreported, poolMissing, frozen, used];
