/** Makes messages as a cluster with hostloop sends them. All times are exact, so tests can check them. */

import type { Fields } from "../../src/model/json.ts";

export interface Timing {
  /** Microseconds of each call. */
  create: number;
  attach: number;
  stage: number;
  publish: number;
  unpublish: number;
  unstage: number;
  detach: number;
  remove: number;
}

export const TIMING: Timing = {
  create: 48_000, attach: 3_200, stage: 61_000, publish: 4_100, unpublish: 2_900, unstage: 14_000, detach: 1_700, remove: 6_300,
};

export const START = 1_764_000_000_000_000;

export const iso = (t: number) => `${new Date(Math.floor(t / 1e6) * 1000).toISOString().slice(0, 19)}Z`;

/** A UID that is the same in each run. */
export function uid(name: string): string {
  let hash = 0x811c9dc5;
  let hex = "";
  for (let round = 0; round < 4; round++) {
    for (const c of `${round}${name}`) hash = Math.imul(hash ^ c.codePointAt(0)!, 0x01000193) >>> 0;
    hex += hash.toString(16).padStart(8, "0");
  }
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

/** What explains a verdict. */
export interface Why {
  note?: string;
  /** Why it is stuck, since now. */
  stuck?: string;
  /** The ID of the claim's volume. */
  volume?: string;
}

export interface Place {
  namespace?: string;
  node?: string;
}

export class World {
  readonly messages: Fields[] = [];
  t = START;
  private seq = new Map<string, number>();
  private span = 0;
  /** The ID of the last work of a controller; events of its queue have it, too. */
  private workId = 0;
  private version = 0;
  /** Versions of objects by kind and key: the next one adds to it. */
  private objects = new Map<string, Fields>();
  /** The names of the life of each claim and snapshot in its last verdict. */
  private judged = new Map<string, string[]>();

  constructor(options: { stream?: string } = {}) {
    this.messages.push({
      type: "hello", stream: options.stream ?? "hostloop.ui/v1", version: "0.2.0", cluster: "demo", endpoint: null,
      namespace: "hostloop", now: this.t,
    });
    this.set("StorageClass", "hostloop", { provisioner: "hostloop.csi.dev", volumeBindingMode: "WaitForFirstConsumer" });
    for (const node of ["node-1", "node-2"]) {
      this.set("Node", node, { status: { conditions: [{ type: "Ready", status: "True" }] } });
    }
    this.lease();
  }

  wait(us: number): this {
    this.t += us;
    return this;
  }

  /** Adds a new version of an object: parts of it, merged with what it had. */
  set(kind: string, key: string, change: Fields): Fields {
    const slash = key.indexOf("/");
    const known = this.objects.get(`${kind} ${key}`);
    const name = key.slice(slash + 1);
    const metadata = known?.["metadata"] ?? {
      name,
      ...(slash === -1 ? {} : { namespace: key.slice(0, slash) }),
      uid: uid(`${kind} ${key} ${this.version}`),
      creationTimestamp: iso(this.t),
    };
    const object = merge({ ...known, metadata }, { ...change, metadata: { ...(change["metadata"] as Fields), resourceVersion: String(++this.version) } });
    this.objects.set(`${kind} ${key}`, object);
    this.messages.push({ type: "object", op: "set", kind, key, t: this.t, object });
    return object;
  }

  object(kind: string, key: string): Fields {
    return this.objects.get(`${kind} ${key}`) ?? {};
  }

  uidOf(kind: string, key: string): string {
    return String((this.object(kind, key)["metadata"] as Fields)["uid"]);
  }

  remove(kind: string, key: string): void {
    const object = this.object(kind, key);
    this.objects.delete(`${kind} ${key}`);
    this.messages.push({ type: "object", op: "delete", kind, key, t: this.t, object });
  }

  /** Says how far a claim or a snapshot is, as the program does. Without words, there is no verdict any more. */
  judge(kind: "claim" | "snapshot", key: string, words = "", tone = "", { note, stuck, volume }: Why = {}): void {
    const known = this.judged.get(key);
    const uid = words === "" ? "" : this.uidOf(kind === "claim" ? "PersistentVolumeClaim" : "VolumeSnapshot", key);
    const lives = words === "" ? [] : [`${kind}:${uid}`, ...(volume === undefined ? [] : [`volume:${volume}`])];
    if (known && known.join() !== lives.join()) this.messages.push({ type: "verdict", t: this.t, lives: known, verdict: null });
    this.judged.delete(key);
    if (words === "") return;
    this.judged.set(key, lives);
    const why = stuck === undefined ? null : { why: stuck, since_ns: this.t * 1e3 };
    this.messages.push({ type: "verdict", t: this.t, lives, verdict: { words, tone, stuck: why, note: note ?? null } });
  }

  event(node: string, process: string, event: Fields): void {
    const stream = `${node}/${process}`;
    const seq = (this.seq.get(stream) ?? 0) + 1;
    this.seq.set(stream, seq);
    this.messages.push({ type: "event", node, process, t: this.t, event: { seq, boot: "b1", ...event } });
  }

  /** A call with its phases, which share its time. The clock is at its end afterwards. */
  call(node: string, name: string, us: number, trace: string, fields: Fields = {}, phases: [string, number][] = []): void {
    const id = ++this.span;
    const start = this.t;
    let at = start + 200;
    for (const [phase, duration] of phases) {
      this.t = at + duration;
      this.event(node, "node", { kind: "phase", name: phase, t: at, us: duration, id: ++this.span, parent: id });
      at += duration;
    }
    this.t = start + us;
    this.event(node, "node", { kind: "call", name, t: start, us, id, trace, code: "OK", ...fields });
  }

  work(node: string, name: string, trace: string, state: string, fields: Fields = {}): void {
    if (state === "working") this.workId = ++this.span;
    this.event(node, name === "placement" ? "controller" : "node", {
      kind: state === "working" || state === "done" ? "work" : "queue", name, t: this.t, trace, state, id: this.workId, ...fields,
    });
  }

  kubernetesEvent(about: { kind: string; key: string }, type: string, reason: string, message: string): void {
    const slash = about.key.indexOf("/");
    const namespace = about.key.slice(0, slash);
    const key = `${namespace}/${about.key.slice(slash + 1)}.${this.version + 1}`;
    this.set("Event", key, {
      type, reason, message, lastTimestamp: iso(this.t),
      involvedObject: { kind: about.kind, namespace, name: about.key.slice(slash + 1), uid: this.uidOf(about.kind, about.key) },
    });
  }

  lease(): void {
    this.set("Lease", "hostloop/hostloop-hostloop-csi-dev", {
      spec: {
        holderIdentity: "hostloop-controller-7d9f", leaseDurationSeconds: 15, leaseTransitions: 1,
        renewTime: new Date(this.t / 1e3).toISOString().replace("Z", "000Z"),
      },
    });
  }

  /** Creates a claim. */
  claim(name: string, { namespace = "demo" }: Place = {}): string {
    const key = `${namespace}/${name}`;
    this.set("PersistentVolumeClaim", key, {
      spec: { storageClassName: "hostloop", resources: { requests: { storage: "1Gi" } } },
      status: { phase: "Pending" },
    });
    this.judge("claim", key, "Pending", "wait", { note: "waits for its first pod" });
    return key;
  }

  pod(name: string, claim: string, { namespace = "demo" }: Place = {}): string {
    const key = `${namespace}/${name}`;
    this.set("Pod", key, {
      spec: { volumes: [{ name: "data", persistentVolumeClaim: { claimName: claim } }] },
      status: { phase: "Pending" },
    });
    return key;
  }

  /** From the chosen node to the bound claim. Returns the volume's ID. */
  provision(claim: string, { node = "node-1" }: Place = {}, timing = TIMING): string {
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    this.set("PersistentVolumeClaim", claim, { metadata: { annotations: { "volume.kubernetes.io/selected-node": node } } });
    this.wait(900).work(node, "provisioner", trace, "queued");
    this.wait(300).work(node, "provisioner", trace, "working");
    this.wait(400);
    const id = volumeId(claim);
    this.call(node, "CreateVolume", timing.create, trace, {
      about: `pvc-${trace}`, request: { name: `pvc-${trace}`, capacity_bytes: 2 ** 30 }, answer: { volume_id: id },
    }, [["image", 1500], ["mkfs", timing.create - 6000], ["record", 2500]]);
    const pv = `pvc-${trace}`;
    this.wait(2_000).set("PersistentVolume", pv, {
      spec: {
        csi: { driver: "hostloop.csi.dev", volumeHandle: id }, claimRef: { uid: trace, name: claim.split("/")[1]!, namespace: claim.split("/")[0]! },
        persistentVolumeReclaimPolicy: "Delete", storageClassName: "hostloop",
      },
      status: { phase: "Available" },
    });
    this.work(node, "provisioner", trace, "done");
    this.wait(4_000).set("PersistentVolume", pv, { status: { phase: "Bound" } });
    this.wait(1_000).set("PersistentVolumeClaim", claim, {
      spec: { volumeName: pv }, status: { phase: "Bound", capacity: { storage: "1Gi" } },
    });
    this.judge("claim", claim, "Bound", "good", { volume: id });
    return id;
  }

  /** From the bound claim to the running pod. */
  start(pod: string, claim: string, { node = "node-1" }: Place = {}, timing = TIMING): void {
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    const id = volumeId(claim);
    this.wait(8_000).set("Pod", pod, { spec: { nodeName: node } });
    const attachment = `csi-${trace.slice(0, 8)}`;
    this.wait(5_000).set("VolumeAttachment", attachment, {
      spec: { nodeName: node, attacher: "hostloop.csi.dev", source: { persistentVolumeName: `pvc-${trace}` } }, status: { attached: false },
    });
    this.wait(700);
    this.call(node, "ControllerPublishVolume", timing.attach, trace, { about: id, request: { volume_id: id, node_id: node } }, [["record", 1_900]]);
    this.wait(1_500).set("VolumeAttachment", attachment, { status: { attached: true } });
    this.wait(120_000);
    this.call(node, "NodeStageVolume", timing.stage, trace, {
      about: id, request: { volume_id: id, staging_target_path: staging(id) },
    }, [["record", 900], ["loop attach", 2_300], ["mount", 7_500]]);
    this.wait(6_000);
    this.call(node, "NodePublishVolume", timing.publish, trace, {
      about: id, request: { volume_id: id, target_path: this.target(pod) },
    }, [["bind mount", 1_100]]);
    this.wait(400_000).set("Pod", pod, { status: { phase: "Running" } });
    this.judge("claim", claim, "published", "good", { volume: id });
  }

  target(pod: string): string {
    return `/var/lib/kubelet/pods/${this.uidOf("Pod", pod)}/volumes/kubernetes.io~csi/data/mount`;
  }

  /** From the pod's deletion to the detached volume. */
  stop(pod: string, claim: string, place: Place = {}, timing = TIMING): void {
    this.leave(pod, claim, place, timing);
    this.detach(claim, place, timing);
  }

  /** Deletes a pod. */
  leave(pod: string, claim: string, { node = "node-1" }: Place = {}, timing = TIMING): void {
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    const id = volumeId(claim);
    this.set("Pod", pod, { metadata: { deletionTimestamp: iso(this.t) } });
    this.wait(300_000);
    this.call(node, "NodeUnpublishVolume", timing.unpublish, trace, { about: id, request: { volume_id: id, target_path: this.target(pod) } }, [["unmount", 800]]);
    this.wait(20_000).remove("Pod", pod);
  }

  private detach(claim: string, { node = "node-1" }: Place, timing: Timing): void {
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    const id = volumeId(claim);
    this.wait(30_000);
    this.call(node, "NodeUnstageVolume", timing.unstage, trace, { about: id, request: { volume_id: id, staging_target_path: staging(id) } }, [["unmount", 4_000], ["loop detach", 2_000]]);
    const attachment = `csi-${trace.slice(0, 8)}`;
    this.wait(9_000).set("VolumeAttachment", attachment, { metadata: { deletionTimestamp: iso(this.t) } });
    this.wait(800);
    this.call(node, "ControllerUnpublishVolume", timing.detach, trace, { about: id, request: { volume_id: id, node_id: node } });
    this.wait(1_200).remove("VolumeAttachment", attachment);
    this.judge("claim", claim, "Bound", "good", { volume: id });
  }

  /** Deletes the claim and its volume. */
  delete(claim: string, { node = "node-1" }: Place = {}, timing = TIMING): void {
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    const id = volumeId(claim);
    this.set("PersistentVolumeClaim", claim, { metadata: { deletionTimestamp: iso(this.t) } });
    this.judge("claim", claim, "Deleting", "wait", { volume: id });
    this.wait(5_000).remove("PersistentVolumeClaim", claim);
    this.wait(3_000).set("PersistentVolume", `pvc-${trace}`, { status: { phase: "Released" } });
    this.wait(1_000);
    this.call(node, "DeleteVolume", timing.remove, trace, { about: id, request: { volume_id: id } }, [["trash", 1_200]]);
    this.wait(2_000).remove("PersistentVolume", `pvc-${trace}`);
    this.judge("claim", claim);
  }

  /** A claim with CreateVolume that fails again and again. */
  stuck(name: string, error: string, tries = 3, { node = "node-2", namespace = "demo" }: Place = {}): string {
    const claim = this.claim(name, { namespace });
    const trace = this.uidOf("PersistentVolumeClaim", claim);
    this.set("PersistentVolumeClaim", claim, { metadata: { annotations: { "volume.kubernetes.io/selected-node": node } } });
    for (let i = 0; i < tries; i++) {
      this.wait(2_000);
      this.call(node, "CreateVolume", 1_500, trace, { code: "RESOURCE_EXHAUSTED", error, request: { name: `pvc-${trace}` } });
      this.judge("claim", claim, "stuck", "bad", { stuck: `ProvisioningFailed: ${error}` });
      this.work(node, "provisioner", trace, "backing off", { next: 2 ** i * 1e6 });
      this.wait(2 ** i * 1e6);
    }
    return claim;
  }

  report(node: string, volumes: Fields[], snapshots: Fields[] = [], loops: Fields[] = [], mounts: Fields[] = []): void {
    this.messages.push({
      type: "report", node, t: this.t,
      report: {
        pools: [{
          name: "default", kind: "directory", path: "/var/lib/hostloop", state: "open", why: null, fs: "xfs", reflinks: true,
          size_bytes: 100 * 2 ** 30, free_bytes: 61 * 2 ** 30, promised_bytes: 42 * 2 ** 30, volumes: volumes.length, snapshots: snapshots.length,
        }],
        volumes, snapshots, groups: [], loops, mounts, orphans: [],
      },
    });
  }

  extents(node: string, volume: string, extents: Fields[]): void {
    this.messages.push({ type: "extents", node, volume, t: this.t, extents });
  }

  metrics(node: string, values: Fields): void {
    this.messages.push({ type: "metrics", node, t: this.t, values });
  }
}

export const volumeId = (claim: string) => `vol-p1-${uid(claim)}`;
const staging = (id: string) => `/var/lib/kubelet/plugins/kubernetes.io/csi/hostloop.csi.dev/${id.slice(-12)}/globalmount`;

function merge(a: Fields, b: Fields): Fields {
  const merged: Fields = { ...a };
  for (const [key, value] of Object.entries(b)) {
    const known = merged[key];
    merged[key] = isFields(known) && isFields(value) ? merge(known, value) : value;
  }
  return merged;
}

const isFields = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
