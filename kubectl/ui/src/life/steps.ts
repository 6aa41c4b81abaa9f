/** The steps of a volume's life, as the CSI specification names them, and when they took place. */

import { endOf, isCall } from "../model/spans.ts";
import { text } from "../model/json.ts";
import type { Span } from "../model/state.ts";

export interface StepKind {
  name: string;
  /** The RPC; undefined for the time between the RPCs. */
  method: string | undefined;
  sentence: string;
  link: string;
}

const SPEC = "https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#";

/** The steps of a claim's life in their order. */
export const STEPS: readonly StepKind[] = [
  {
    name: "provision",
    method: "CreateVolume",
    sentence: "CreateVolume makes the volume: a record, an image and its filesystem on the node's pool.",
    link: `${SPEC}createvolume`,
  },
  {
    name: "attach",
    method: "ControllerPublishVolume",
    sentence: "ControllerPublishVolume makes the volume available to one node.",
    link: `${SPEC}controllerpublishvolume`,
  },
  {
    name: "stage",
    method: "NodeStageVolume",
    sentence: "NodeStageVolume attaches a loop device and mounts the filesystem once on the node.",
    link: `${SPEC}nodestagevolume`,
  },
  {
    name: "publish",
    method: "NodePublishVolume",
    sentence: "NodePublishVolume mounts the volume into the pod's directory.",
    link: `${SPEC}nodepublishvolume`,
  },
  {
    name: "use",
    method: undefined,
    sentence: "The containers of the pod use the volume. No CSI call is needed.",
    link: `${SPEC}volume-lifecycle`,
  },
  {
    name: "unpublish",
    method: "NodeUnpublishVolume",
    sentence: "NodeUnpublishVolume unmounts the volume from the pod's directory.",
    link: `${SPEC}nodeunpublishvolume`,
  },
  {
    name: "unstage",
    method: "NodeUnstageVolume",
    sentence: "NodeUnstageVolume unmounts the filesystem and detaches the loop device.",
    link: `${SPEC}nodeunstagevolume`,
  },
  {
    name: "detach",
    method: "ControllerUnpublishVolume",
    sentence: "ControllerUnpublishVolume ends the volume's availability to the node.",
    link: `${SPEC}controllerunpublishvolume`,
  },
  {
    name: "delete",
    method: "DeleteVolume",
    sentence: "DeleteVolume moves the volume to the pool's trash and frees its space.",
    link: `${SPEC}deletevolume`,
  },
];

/** Steps beside the main ones. They are shown only in lives that have them. */
const OTHER_STEPS: readonly StepKind[] = [
  {
    name: "snapshot",
    method: "CreateSnapshot",
    sentence: "CreateSnapshot freezes the filesystem, clones the image, and thaws it. A power cut is only cloned.",
    link: `${SPEC}createsnapshot`,
  },
  {
    name: "snapshot group",
    method: "CreateVolumeGroupSnapshot",
    sentence: "CreateVolumeGroupSnapshot takes snapshots of several volumes at one time.",
    link: `${SPEC}createvolumegroupsnapshot`,
  },
  {
    name: "delete snapshot",
    method: "DeleteSnapshot",
    sentence: "DeleteSnapshot frees the blocks that only the snapshot has.",
    link: `${SPEC}deletesnapshot`,
  },
  {
    name: "delete group",
    method: "DeleteVolumeGroupSnapshot",
    sentence: "DeleteVolumeGroupSnapshot deletes the snapshots of a group.",
    link: `${SPEC}deletevolumegroupsnapshot`,
  },
  {
    name: "expand",
    method: "ControllerExpandVolume",
    sentence: "ControllerExpandVolume makes the image larger.",
    link: `${SPEC}controllerexpandvolume`,
  },
  {
    name: "expand on node",
    method: "NodeExpandVolume",
    sentence: "NodeExpandVolume grows the loop device and the filesystem.",
    link: `${SPEC}nodeexpandvolume`,
  },
  {
    name: "modify",
    method: "ControllerModifyVolume",
    sentence: "ControllerModifyVolume changes the volume's parameters.",
    link: `${SPEC}controllermodifyvolume`,
  },
];

const BY_METHOD = new Map([...STEPS, ...OTHER_STEPS].map((step) => [step.method, step]));
const USE = STEPS.find((step) => step.name === "use")!;

/** One time that a step took place. Retries of a failed call belong to one. */
export interface Step {
  kind: StepKind;
  t: number;
  end: number;
  calls: number;
  /** `OK`, the last error's code, or empty while it is under way. */
  code: string;
  spans: Span[];
}

/** The steps that took place, by their start. */
export function steps(spans: readonly Span[], now: number): Step[] {
  const found: Step[] = [];
  const open = new Map<string, Step>();
  for (const span of spans) {
    const kind = isCall(span) ? BY_METHOD.get(span.name) : undefined;
    if (!kind) continue;
    const subject = `${span.name} ${text(span.request, "target_path")}`;
    let step = open.get(subject);
    if (!step) {
      step = { kind, t: span.t, end: span.t, calls: 0, code: "", spans: [] };
      found.push(step);
      open.set(subject, step);
    }
    step.calls += 1;
    step.end = Math.max(step.end, endOf(span, now));
    step.code = span.code;
    step.spans.push(span);
    if (span.code === "OK") open.delete(subject);
  }
  return [...found, ...uses(found, now)].sort((a, b) => a.t - b.t);
}

/** The times between the first successful publish and the last unpublish of its targets. */
function uses(found: readonly Step[], now: number): Step[] {
  const periods: Step[] = [];
  let targets = 0;
  let since = 0;
  const add = (end: number, code: string) => {
    if (end > since) periods.push({ kind: USE, t: since, end, calls: 0, code, spans: [] });
  };
  for (const step of found) {
    if (step.code !== "OK") continue;
    if (step.kind.name === "publish" && targets++ === 0) since = step.end;
    if (step.kind.name === "unpublish" && targets > 0 && --targets === 0) add(step.t, "OK");
    // An unpublish can have been missed. Nothing uses a volume that is not staged.
    if (step.kind.name === "unstage" && targets > 0) {
      targets = 0;
      add(step.t, "OK");
    }
  }
  if (targets > 0) add(now, "");
  return periods;
}

/** A summary of one kind of step for a row of the table: not begun, under way, failed or done. */
export type Progress = "none" | "busy" | "bad" | "done";

/** The progress of each of the main steps. */
export function progress(taken: readonly Step[]): Progress[] {
  return STEPS.map((kind) => {
    const last = taken.filter((step) => step.kind === kind).at(-1);
    if (!last) return "none";
    if (last.code === "OK") return "done";
    return last.code === "" ? "busy" : "bad";
  });
}
