/**
 * A test checks this file against kubectl/src/ui/message.rs, and writes it with
 * HOSTLOOP_WRITE_DOCS=1.
 */

/** What makes a snapshot a cut: it is one of many of a crash exploration, and expires. */
export interface CutMark {
  /** When the driver deletes it. */
  expires_ns: number;
  /** The exploration's ID. */
  exploration: string;
  /** Its number in the exploration, from 1. */
  number: number;
}

/** A cut at its moment. */
export interface CutMoment {
  /** The time since the first cut, in nanoseconds. */
  after_first_ns: number;
  number: number;
  /** `passed`, `failed`, `unknown` if its check did not begin, or `unchecked`. */
  result: string;
  /** Bytes that were written since the cut before, at most; null for the first one. */
  written_bytes: number | null;
}

/** A cut that has not passed. */
export interface CutRow {
  /** The time since the first cut, in nanoseconds. */
  after_first_ns: number;
  /** A claim that has its content again. */
  again: Record<string, unknown>;
  /** The last lines of the check. */
  log: string[];
  number: number;
  /** `failed`, or `unknown` if its check did not begin. */
  result: string;
  /** The VolumeSnapshot that has it. */
  snapshot: string;
  why: string;
}

/** The cuts of crash explorations in a pool. */
export interface CutUsage {
  /** Number of cuts. */
  count: number;
  /** Bytes promised to them at most. Blocks that they share count for each. */
  promised_bytes: number;
}

/** What an exploration has found. */
export interface ExplorationReport {
  /** Why there are fewer cuts than requested. */
  burst_ended: string | null;
  /** The time from the first cut to the last one, in nanoseconds. */
  burst_ns: number;
  claim: string;
  /** The cuts that have not passed, by number. */
  cuts: CutRow[];
  /** The requested time from one cut to the next, in nanoseconds. */
  every_ns: number;
  /** The exploration's ID. */
  exploration: string;
  failed: number;
  /** When the first cut was taken, in nanoseconds since the epoch; null without one. */
  first_taken_ns: number | null;
  namespace: string;
  node: string;
  passed: number;
  /** What went wrong beside the checks; a sentence each. */
  problems: string[];
  /** The number of cuts that were requested. */
  requested: number;
  /** Draws the order of the checks. */
  seed: number;
  /** The number of cuts that were taken. */
  taken: number;
  /** All cuts that were taken, by number. */
  timeline: CutMoment[];
  /** The number of cuts that were to be checked, and the check did not begin. */
  unknown: number;
  /** The volume's ID. */
  volume: string;
}

/** The use of another node's volume on this node. */
export interface ForeignUse {
  /** The volume's ID. */
  id: string;
  /** N of the volume's `/dev/loopN`. */
  minor: number;
  /** Where this node has its filesystem mounted or its device bound. */
  mounts: string[];
  /** True if this node pins the device. */
  pins: boolean;
}

export interface GroupReport {
  /** The point in time that the snapshots show. */
  created_ns: number;
  /** The group snapshot's ID. */
  id: string;
  /** The name in the request that created the group snapshot. */
  name: string;
  /** The name of the pool. */
  pool: string;
  /** The IDs of the member snapshots. */
  snapshots: string[];
}

/** A kernel that several nodes share. */
export interface KernelReport {
  /** The nodes that the administrator lists with this one, and this one. */
  listed: string[];
  /** The kernel's name, which the administrator chose. */
  name: string;
  /** The nodes with a marker on the kernel: they are proved to share it. */
  seen: string[];
  /** True if the kernel numbers the attachments of loop devices, as Linux does from 5.15 on. */
  shows_diskseq: boolean;
}

export interface LoopReport {
  /** True if the kernel detaches the device at its last close. */
  autoclear: boolean;
  /** The logical block size. */
  block_size: number;
  /** The device node. */
  device: string;
  /** True if direct I/O is active. */
  direct_io: boolean;
  /** That object: a pool's name, an ID, a path, or a device. */
  object: string;
  /**
   * The kind of object that the device is over: `pool`, `volume`, `snapshot`, `leftover`, `deleted`
   * or `loop`.
   */
  over: string;
  /** True if the device is read-only. */
  read_only: boolean;
  /** The device's size. */
  size_bytes: number;
}

/** The first message of each stream. */
export interface HelloMessage {
  /** The context of the cluster. */
  cluster: string | null;
  /** The driver's name; empty for the usual one. */
  driver: string;
  /** The socket of a driver without a cluster. */
  endpoint: string | null;
  /** The namespace of the person. */
  namespace: string;
  /** The time of the program's clock. */
  now: number;
  /** The format of the stream. */
  stream: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "hello";
  /** The version of the program. */
  version: string;
}

/** An object as it is now, or its end. */
export interface ObjectMessage {
  /** The name, after the namespace if there is one. */
  key: string;
  kind: string;
  object?: Record<string, unknown>;
  op: Op;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "object";
}

/** What a process did. */
export interface EventMessage {
  event: ProcessEvent;
  /** The node; empty for a driver that has not said it. */
  node: string;
  /** `node` or `controller`. */
  process: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "event";
}

/** Events of a process that are lost. */
export interface GapMessage {
  /** How many. */
  lost: number;
  node: string;
  process: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "gap";
}

/** What `hostloop status --json` reports on a node. */
export interface ReportMessage {
  node: string;
  report: Report;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "report";
}

/** The values of metrics of a process. */
export interface MetricsMessage {
  node: string;
  process: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "metrics";
  /** By name and labels. */
  values: Record<string, number>;
}

/** Where the blocks of an image are; nowhere if the image is gone. */
export interface ExtentsMessage {
  extents: ReportedRun[];
  node: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "extents";
  /** The ID of the volume or snapshot. */
  volume: string;
}

/** How far a claim, a snapshot or a volume is, and why it is stuck. */
export interface VerdictMessage {
  /** The names of the one life that it is about, as the page has them. */
  lives: string[];
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "verdict";
  /** Null if there is nothing to say any more. */
  verdict: ShownVerdict | null;
}

/** What does not work, in a sentence. */
export interface ProblemMessage {
  about: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  text: string;
  type: "problem";
}

/** What works again. */
export interface SolvedMessage {
  about: string;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "solved";
}

/** What `kubectl hostloop explore` has found. No stream has it: `--replay` shows such a report. */
export interface ExplorationMessage {
  report: ExplorationReport;
  /** When it was sent, in microseconds since the epoch. */
  t: number;
  type: "exploration";
}

/** A message as it is sent. */
export type Message =
  | HelloMessage
  | ObjectMessage
  | EventMessage
  | GapMessage
  | ReportMessage
  | MetricsMessage
  | ExtentsMessage
  | VerdictMessage
  | ProblemMessage
  | SolvedMessage
  | ExplorationMessage;

export interface MountReport {
  /** The loop device that is mounted or bound. */
  device: string;
  /** The filesystem type; for a device, that of `/dev`. */
  fs: string;
  /** `filesystem` or `device` (the node of a raw block volume). */
  kind: string;
  /** The object under the loop device: a pool's name, an ID, a path, or a device. */
  object: string;
  /** All options of the mount and its filesystem. */
  options: string[];
  /** The mount point. */
  path: string;
  /** True if the mount is read-only. */
  read_only: boolean;
}

/** What happened to an object. */
export type Op = "set" | "delete";

/** A fault of a pool that an administrator has asked for. */
export interface PoolFault {
  /** The fault as it was asked for, with its time. */
  fault: string;
  /** What happens, such as `full`. */
  name: string;
  /** When it began. */
  since_ns: number;
}

export interface PoolReport {
  /** The part of the free space that volumes may use. */
  available_bytes: number | null;
  /** The cuts among the snapshots; null without any, and from earlier versions. */
  cuts: CutUsage | null;
  /**
   * Bytes that these images held when the snapshots were taken, including blocks shared with
   * others; null if unknown.
   */
  deleted_base_bytes: number | null;
  /** Number of deleted snapshots that keep their images; null if unknown. */
  deleted_bases: number | null;
  /** The fault that an administrator has asked for; null without one. */
  fault: PoolFault | null;
  /** Free space of the pool's filesystem, including what it reserves for root. */
  free_bytes: number | null;
  /** The filesystem type, by the kernel's name. */
  fs: string | null;
  /**
   * Bytes that the images of volumes and snapshots hold at least: blocks that they may share count
   * once. Null if unknown, and from earlier versions.
   */
  held_bytes: number | null;
  /** The pool's ID, part of every ID in it. */
  id: string | null;
  /** `directory`, `device` or `image`. */
  kind: string;
  /** The pool's name in the configuration. */
  name: string;
  /** The configured path. */
  path: string;
  /** The driver's process ID, if it is visible from this PID namespace. */
  pid: number | null;
  /** Bytes promised to volumes and snapshots. */
  promised_bytes: number | null;
  /** Whether snapshots share blocks; null if unknown. */
  reflinks: boolean | null;
  /** The pool's root directory. */
  root: string | null;
  /** Size of the pool's filesystem. */
  size_bytes: number | null;
  /** Number of snapshots in the pool. */
  snapshots: number;
  /** `open` (a driver has it open), `closed` (no driver has), or `missing`. */
  state: string;
  /** Number of volumes in the pool. */
  volumes: number;
  /** The reason if the pool is missing. */
  why: string | null;
}

/** The kind of a problem. The names are stable, because they are in the JSON. */
export type ProblemKind = "pool-missing" | "pool-image-lost" | "pool-read-only" | "pool-nearly-full" | "filesystem-shut-down" | "filesystem-read-only" | "record-unreadable" | "record-newer" | "record-missing" | "record-misplaced" | "stranger" | "image-missing" | "image-short" | "image-long" | "not-thick" | "duplicate-name" | "group-missing" | "group-incomplete" | "leftover" | "loop-twice" | "loop-over-deleted" | "loop-of-other-pool" | "loop-unused" | "loop-silent" | "loop-changed" | "stage-without-loop" | "stage-without-mount" | "stage-other-loop" | "use-without-stage" | "freeze-left" | "fault" | "format-left" | "direct-io-off" | "loop-size";

/** A line with an event. */
export interface ProcessEvent {
  /** The subject. */
  about?: string;
  answer?: Record<string, unknown>;
  /** The ring. It differs after each start of the process. */
  boot: string;
  code?: string;
  /** The message of the error. */
  error?: string;
  /** The ID of the call or work. Its beginning and its end have the same one. */
  id?: number;
  /** `call`, `phase`, `work`, `queue` or `lease`. */
  kind: string;
  /** The RPC, the step, the controller, or what happened to the lease. */
  name: string;
  /** Microseconds until the next try. */
  next?: number;
  /** The ID of the call that a step is part of. */
  parent?: number;
  request?: Record<string, unknown>;
  /** The number of the event in its ring. */
  seq: number;
  /** The state of an object in a controller. */
  state?: string;
  /** The start, in microseconds since the epoch. */
  t: number;
  /** The UID of the claim or snapshot if it is known, else another ID of the object. */
  trace?: string;
  /** The duration in microseconds. */
  us?: number;
}

/** The driver's recovery repairs it: at its next start, or now with `fsck --repair`. */
export interface RecoveryRepair {
  by: "recovery";
}

/** A person has to repair it, in this way. */
export interface PersonRepair {
  by: "person";
  how: string;
}

/** No repair is needed, or the driver repairs it at the volume's next use. The text explains it. */
export interface ItselfRepair {
  by: "itself";
  how: string;
}

/** Who repairs a problem, and how. */
export type Repair =
  | RecoveryRepair
  | PersonRepair
  | ItselfRepair;

/** The whole output of `hostloop status`. */
export interface Report {
  /** The devices of other nodes' volumes that this node uses; empty from earlier versions. */
  foreign: ForeignUse[];
  /** The group snapshots with a readable record, oldest first in each pool. */
  groups: GroupReport[];
  /** The kernel that this node shares with others; null if it shares none, or has not proved it. */
  kernel: KernelReport | null;
  /** The driver's loop devices, by minor. */
  loops: LoopReport[];
  /** The driver's mounts, in the order they were made. */
  mounts: MountReport[];
  /** What has no owner or can't be read: the problems of `hostloop fsck` about such things. */
  orphans: ReportedProblem[];
  /** The configured pools, in order. */
  pools: PoolReport[];
  /** The snapshots with a readable record, oldest first in each pool. */
  snapshots: SnapshotReport[];
  /** The volumes with a readable record, oldest first in each pool. */
  volumes: VolumeReport[];
}

/** One problem. */
export interface ReportedProblem {
  kind: ProblemKind;
  /** The object: an ID, a path below the pool, or a device. */
  object: string;
  /** The pool's name, if the problem is about one pool. */
  pool: string | null;
  repair: Repair;
  severity: Severity;
  /** The problem, as a sentence about the object. */
  what: string;
}

/** A run of a file's blocks. */
export interface ReportedRun {
  /** Length in bytes. */
  len: number;
  /** Offset in the file, in bytes. */
  offset: number;
  /** Offset on the filesystem, in bytes. */
  physical: number;
  /** True if another file has these blocks too. */
  shared: boolean;
}

/** How bad a problem is. The order is from harmless to bad. */
export type Severity = "note" | "warning" | "error";

/** A verdict as the page shows it. */
export interface ShownVerdict {
  /** What explains the state of what is not stuck. */
  note: string | null;
  /** Why it is stuck. */
  stuck: Stuck | null;
  tone: Tone;
  /** The state in the words of `kubectl hostloop status`. */
  words: string;
}

export interface SnapshotReport {
  /** Bytes allocated on disk, including blocks shared with others; null without an image. */
  allocated_bytes: number | null;
  /** `frozen`, or `powercut` for what a power cut would have left; null from earlier versions. */
  consistency: string | null;
  /** The point in time that the snapshot shows. */
  created_ns: number;
  /** The mark of a cut; null for other snapshots, and from earlier versions. */
  cut: CutMark | null;
  /** The group snapshot of which this is a member. */
  group: string | null;
  /** The snapshot's ID. */
  id: string;
  /** The name in the request that created the snapshot. */
  name: string;
  /** The name of the snapshot's pool. */
  pool: string;
  /** The source volume's size when the snapshot was taken. */
  size_bytes: number;
  /** The ID of the source volume. */
  source: string;
  /** True if the source volume still exists. */
  source_exists: boolean;
  /** When the image was last written; null without an image. */
  written_ns: number | null;
}

/** Why something does not go on. */
export interface Stuck {
  /** The time of that warning, or since when nothing happens. */
  since_ns: number | null;
  /** The reason in words: mostly the last warning. */
  why: string;
}

/** How good a state is. */
export type Tone = "good" | "wait" | "bad" | "gone";

/**
 * A fault of a volume, from before its first effect until nothing asks for it any more and it has
 * left nothing.
 */
export interface VolumeFault {
  /** The fault as it was asked for, with its time and its seed. */
  fault: string;
  /** What happens, such as `gone`. */
  name: string;
  /** When it began. */
  since_ns: number;
  /**
   * `active`; `waiting` for a pod that uses the volume; `stopped`, if it is over and the filesystem
   * has to be mounted again; or `over`.
   */
  state: string;
}

export interface VolumeReport {
  /** Bytes allocated on disk, including blocks shared with others; null without an image. */
  allocated_bytes: number | null;
  /** When the volume was created. */
  created_ns: number;
  /** True if direct I/O is active; null without a loop device. */
  direct_io: boolean | null;
  /** The fault that its claim asks for, or that has stopped its filesystem; null without one. */
  fault: VolumeFault | null;
  /** `none`, `ext4`, `xfs`, `btrfs` or `raw`; a `?` at the end means that mkfs did not finish. */
  format: string;
  /** When a freeze that has not ended began. */
  frozen_since_ns: number | null;
  /** The volume's ID. */
  id: string;
  /** Kubelet's handle for an inline volume. */
  inline: string | null;
  /** The volume's loop devices, including those over them. */
  loops: string[];
  /** Where the volume's filesystem is mounted or its device is bound. */
  mounts: string[];
  /** The name in the CreateVolume request. */
  name: string;
  /** The name of the volume's pool. */
  pool: string;
  /** `thin` or `thick`. */
  provisioning: string;
  /** Nodes to which the volume is published. */
  published_nodes: string[];
  /**
   * `node`, or `kernel` for a volume that all nodes of a kernel may use; null from earlier
   * versions.
   */
  reach: string | null;
  /** The volume's size. */
  size_bytes: number;
  /** The snapshot or volume that is the content source. */
  source: string | null;
  /** `block` or `mount`, if the volume is staged. */
  staged_as: string | null;
  /** The staging path. */
  staged_at: string | null;
  /** The nodes that use the volume, or to which it is published; empty from earlier versions. */
  users: VolumeUser[];
  /** When the image was last written; null without an image. */
  written_ns: number | null;
}

/** A node that uses a volume, or to which it is published. */
export interface VolumeUser {
  /** The node's ID. */
  node: string;
  /** True if it pins the volume's device, and its container runs. */
  pins: boolean;
  /** True if the volume is published to it. */
  published: boolean;
}
