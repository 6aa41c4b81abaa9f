/** What a node has for each image: loop devices, filesystems, mounts and pods. */

import { faultOf, type Fault } from "../model/fault.ts";
import { fields, list, number, text, type Unchecked } from "../model/json.ts";
import { podUid, volumeLife } from "../model/lives.ts";
import { pushTo, type ReportFields, type State } from "../model/state.ts";
import type * as Wire from "../model/wire.generated.ts";

export interface Loop {
  device: string;
  size: number;
  blockSize: number;
  direct: boolean;
  readOnly: boolean;
}

export interface Mount {
  path: string;
  /** `filesystem` or `device`. */
  kind: string;
  fs: string;
  device: string;
  readOnly: boolean;
  /** `staging`, or the pod's namespace and name, or its UID. */
  pod: string;
  staging: boolean;
}

export interface Chain {
  id: string;
  kind: "volume" | "snapshot";
  /** The life it belongs to. */
  life: string;
  /** The claim's or snapshot's name, or the name in the record. */
  name: string;
  pool: string;
  size: number;
  allocated: number | undefined;
  format: string;
  source: string;
  created: number;
  fault: Fault | undefined;
  /** The nodes that use a volume that several can use, in the words of `kubectl hostloop status`. */
  users: string[];
  loops: Loop[];
  mounts: Mount[];
}

/** The chains of a node, by pool and age. */
export function chains(state: State, node: string): Chain[] {
  const found = state.reports.get(node);
  if (!found) return [];
  const loops = byObject(list(found.report.loops), (value): Unchecked<Wire.LoopReport> => fields(value));
  const mounts = byObject(list(found.report.mounts), (value): Unchecked<Wire.MountReport> => fields(value));
  const chain = (item: ReportFields, kind: Chain["kind"]): Chain => {
    const id = text(item.id);
    const life = volumeLife(state, id);
    const own = loops.get(id) ?? [];
    // A loop device over another one has that device as its object.
    const over = own.flatMap((l) => loops.get(text(l.device)) ?? []);
    const devices = [...own, ...over];
    const mounted = [id, ...devices.map((l) => text(l.device))].flatMap((object) => mounts.get(object) ?? []);
    return {
      id,
      kind,
      life,
      name: nameOf(state, life) || text(item.name) || id,
      pool: text(item.pool),
      size: number(item.size_bytes) ?? 0,
      allocated: number(item.allocated_bytes),
      format: text(item.format),
      source: text(item.source),
      created: (number(item.created_ns) ?? 0) / 1e3,
      fault: faultOf(item),
      users: item.reach === "kernel" ? list(item.users).map((value) => userWords(fields(value))) : [],
      loops: devices.map(loop),
      mounts: mounted.map((m) => mount(state, m, text(item.staged_at))),
    };
  };
  return [
    ...list(found.report.volumes).map((item) => chain(fields(item), "volume")),
    ...list(found.report.snapshots).map((item) => chain(fields(item), "snapshot")),
  ].sort((a, b) => (a.pool < b.pool ? -1 : a.pool > b.pool ? 1 : a.created - b.created));
}

/** A node that uses a volume with others. */
function userWords(user: Unchecked<Wire.VolumeUser>): string {
  const node = text(user.node);
  if (user.published !== true) return `${node} (held)`;
  return user.pins === true ? node : `${node} (attached)`;
}

/** The snapshot of the same volume before a snapshot, of these in the order of their age. */
export function snapshotBefore<C extends Pick<Chain, "id" | "kind" | "pool" | "source">>(all: readonly C[], of: C): C | undefined {
  if (of.kind !== "snapshot" || of.source === "") return undefined;
  const place = all.findIndex((other) => other.id === of.id);
  return all.slice(0, Math.max(place, 0)).findLast((other) =>
    other.kind === "snapshot" && other.source === of.source && other.pool === of.pool);
}

/** Loop devices or mounts, by the object that each is over. */
function byObject<Read>(items: readonly unknown[], read: (value: unknown) => Read): Map<string, Read[]> {
  const found = new Map<string, Read[]>();
  for (const item of items) pushTo(found, text(item, "object"), read(item));
  return found;
}

function nameOf(state: State, life: string): string {
  const tracked = life.startsWith("volume:") ? undefined : state.uids.get(life.slice(life.indexOf(":") + 1));
  return tracked?.key ?? "";
}

function loop(device: Unchecked<Wire.LoopReport>): Loop {
  return {
    device: text(device.device),
    size: number(device.size_bytes) ?? 0,
    blockSize: number(device.block_size) ?? 0,
    direct: device.direct_io === true,
    readOnly: device.read_only === true,
  };
}

function mount(state: State, found: Unchecked<Wire.MountReport>, stagedAt: string): Mount {
  const path = text(found.path);
  const uid = podUid(path);
  const pod = state.uids.get(uid);
  return {
    path,
    kind: text(found.kind),
    fs: text(found.fs),
    device: text(found.device),
    readOnly: found.read_only === true,
    pod: pod?.kind === "Pod" ? pod.key : uid,
    staging: path !== "" && path === stagedAt,
  };
}

export interface Pool {
  name: string;
  kind: string;
  state: string;
  why: string;
  path: string;
  fs: string;
  reflinks: boolean | undefined;
  size: number;
  free: number;
  promised: number;
  /** What new volumes can have, if a metric says it. */
  available: number | undefined;
}

export function pools(state: State, node: string): Pool[] {
  return list(state.reports.get(node)?.report.pools).map((value) => {
    const pool: Unchecked<Wire.PoolReport> = fields(value);
    const name = text(pool.name);
    const fault = text(pool.fault, "name");
    return {
      name,
      kind: text(pool.kind),
      state: fault === "" ? text(pool.state) : `${text(pool.state)}, fault ${fault}`,
      why: text(pool.why),
      path: text(pool.path),
      fs: text(pool.fs),
      reflinks: typeof pool.reflinks === "boolean" ? pool.reflinks : undefined,
      size: number(pool.size_bytes) ?? 0,
      free: number(pool.free_bytes) ?? 0,
      promised: number(pool.promised_bytes) ?? 0,
      available: state.metrics.get(`hostloop_pool_available_bytes{pool="${name}"}`)?.get(node)?.value.at(-1),
    };
  });
}

/** The nodes with a report, a Node object or a process that sent events. */
export function nodes(state: State): string[] {
  const names = new Set<string>(state.reports.keys());
  for (const tracked of state.kinds.get("Node") ?? []) if (tracked.deleted === undefined) names.add(tracked.key);
  names.delete("");
  return [...names].sort();
}

