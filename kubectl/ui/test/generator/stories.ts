/** Streams of messages that tell a story each. */

import type { Fields } from "../../src/model/json.ts";
import { START, volumeId, World } from "./world.ts";

const MIB = 2 ** 20;

/** The whole life of one claim, from its creation to its deletion. */
export function wholeLife(world = new World()): World {
  const claim = world.wait(50_000).claim("data");
  const pod = world.wait(60_000).pod("web", "data");
  world.wait(15_000).provision(claim);
  world.start(pod, claim);
  world.wait(90e6).stop(pod, claim);
  world.wait(2e6).delete(claim);
  return world;
}

export function volumeReport(world: World, claim: string, used = 40 * MIB): Fields {
  return {
    id: volumeId(claim), name: `pvc-${world.uidOf("PersistentVolumeClaim", claim)}`, inline: null, pool: "default",
    size_bytes: 1024 * MIB, allocated_bytes: used, provisioning: "thin", format: "ext4", source: null,
    published_nodes: ["node-1"], staged_at: "/staging/data", staged_as: "mount", loops: ["/dev/loop0"], direct_io: true,
    frozen_since_ns: null, mounts: ["/staging/data"], created_ns: 1_764_000_000_000_000_000,
  };
}

/** A claim in use, its snapshot that shares all blocks, and a write that splits some of them. */
export function sharing(world = new World()): World {
  const claim = world.wait(50_000).claim("data");
  const pod = world.wait(60_000).pod("web", "data");
  const id = world.wait(15_000).provision(claim);
  world.start(pod, claim);
  const loops = [{ device: "/dev/loop0", over: "volume", object: id, size_bytes: 1024 * MIB, block_size: 4096, direct_io: true, read_only: false, autoclear: false }];
  const mounts = [
    { path: "/staging/data", kind: "filesystem", fs: "ext4", device: "/dev/loop0", object: id, read_only: false, options: [] },
    { path: world.target(pod), kind: "filesystem", fs: "ext4", device: "/dev/loop0", object: id, read_only: false, options: [] },
  ];
  world.report("node-1", [volumeReport(world, claim)], [], loops, mounts);
  world.extents("node-1", id, [{ offset: 0, len: 40 * MIB, physical: 512 * MIB, shared: false }]);
  const snapshot = "demo/before";
  world.wait(5e6).set("VolumeSnapshot", snapshot, { spec: { source: { persistentVolumeClaimName: "data" } }, status: { readyToUse: false } });
  world.judge("snapshot", snapshot, "being taken", "wait");
  const snapshotUid = world.uidOf("VolumeSnapshot", snapshot);
  const snapshotId = `snap-p1-${snapshotUid}`;
  world.wait(20_000).set("VolumeSnapshotContent", `snapcontent-${snapshotUid}`, { spec: { volumeSnapshotRef: { uid: snapshotUid }, deletionPolicy: "Delete" }, status: {} });
  world.wait(4_000).call("node-1", "CreateSnapshot", 21_000, snapshotUid, {
    about: `snapshot-${snapshotUid}`, request: { name: `snapshot-${snapshotUid}`, source_volume_id: id }, answer: { snapshot_id: snapshotId },
  }, [["freeze", 2_000], ["clone", 700], ["thaw", 900]]);
  world.wait(1_000).set("VolumeSnapshotContent", `snapcontent-${snapshotUid}`, { status: { snapshotHandle: snapshotId, readyToUse: true } });
  world.wait(1_000).set("VolumeSnapshot", snapshot, { status: { readyToUse: true, restoreSize: "1Gi" } });
  world.judge("snapshot", snapshot, "ready", "good");
  const taken = { id: snapshotId, name: `snapshot-${snapshotUid}`, pool: "default", source: id, source_exists: true, size_bytes: 1024 * MIB, allocated_bytes: 40 * MIB, group: null, created_ns: world.t * 1e3 };
  world.wait(1e6).report("node-1", [volumeReport(world, claim)], [taken], loops, mounts);
  world.extents("node-1", id, [{ offset: 0, len: 40 * MIB, physical: 512 * MIB, shared: true }]);
  world.extents("node-1", snapshotId, [{ offset: 0, len: 40 * MIB, physical: 512 * MIB, shared: true }]);
  world.metrics("node-1", {
    'hostloop_pool_available_bytes{pool="default"}': 50 * 2 ** 30, 'workqueue_depth{name="provisioner"}': 2,
    'csi_plugin_operations_seconds_count{method_name="/csi.v1.Node/NodeStageVolume"}': 4,
  });
  world.wait(5e6).metrics("node-1", {
    'hostloop_pool_available_bytes{pool="default"}': 49 * 2 ** 30, 'workqueue_depth{name="provisioner"}': 0,
    'csi_plugin_operations_seconds_count{method_name="/csi.v1.Node/NodeStageVolume"}': 19,
  });
  return world;
}

/** The write after `sharing`: 8 MiB in the middle of the volume have new blocks. */
export function split(world: World): World {
  const id = volumeId("demo/data");
  world.extents("node-1", `snap-p1-${world.uidOf("VolumeSnapshot", "demo/before")}`, [
    { offset: 0, len: 16 * MIB, physical: 512 * MIB, shared: true },
    { offset: 16 * MIB, len: 8 * MIB, physical: 528 * MIB, shared: false },
    { offset: 24 * MIB, len: 16 * MIB, physical: 536 * MIB, shared: true },
  ]);
  world.wait(3e6).extents("node-1", id, [
    { offset: 0, len: 16 * MIB, physical: 512 * MIB, shared: true },
    { offset: 16 * MIB, len: 8 * MIB, physical: 900 * MIB, shared: false },
    { offset: 24 * MIB, len: 16 * MIB, physical: 536 * MIB, shared: true },
  ]);
  return world;
}

/** Another snapshot after `split`: it differs from the first one by the write. */
export function again(world: World): World {
  const id = volumeId("demo/data");
  const first = `snap-p1-${world.uidOf("VolumeSnapshot", "demo/before")}`;
  const taken = { pool: "default", source: id, source_exists: true, size_bytes: 1024 * MIB, allocated_bytes: 40 * MIB, group: null };
  const created = world.t * 1e3;
  world.wait(1e6).report("node-1", [], [
    { ...taken, id: first, name: "before", created_ns: created - 1e9 },
    { ...taken, id: "snap-p1-after", name: "after", created_ns: created },
  ]);
  world.extents("node-1", "snap-p1-after", [
    { offset: 0, len: 16 * MIB, physical: 512 * MIB, shared: true },
    { offset: 16 * MIB, len: 8 * MIB, physical: 900 * MIB, shared: true },
    { offset: 24 * MIB, len: 16 * MIB, physical: 536 * MIB, shared: true },
  ]);
  return world;
}

export const FULL = "pool default of node node-2 has 1.50 GiB left for new volumes, and 2 GiB were requested: free space or use another node";

/** A volume in use, one that is stuck, and one that waits for a pod. */
export function severalStates(): World {
  const world = sharing();
  world.stuck("full", FULL);
  world.claim("unused");
  world.event("", "controller", { kind: "lease", name: "acquired", t: world.t, trace: "hostloop-hostloop-csi-dev", about: "hostloop-hostloop-csi-dev" });
  world.lease();
  return world;
}

/** A volume in use with a fault in this state. */
export function faulty(state: string, world = new World()): World {
  const claim = world.wait(50_000).claim("data");
  const pod = world.wait(60_000).pod("web", "data");
  const id = world.wait(15_000).provision(claim);
  world.start(pod, claim);
  const fault = { name: "gone", fault: "gone,for=600s", since_ns: world.t * 1e3, state };
  world.report("node-1", [{ ...volumeReport(world, claim), fault }]);
  if (state !== "over") world.judge("claim", claim, "published, fault gone", "wait", { volume: id });
  return world;
}

/** The report of `kubectl hostloop explore -o json`: of 24 cuts, one failed, one could not be checked, and one was not. */
export function explorationReport(): Fields {
  const results: Readonly<Record<number, string>> = { 17: "failed", 20: "unknown", 24: "unchecked" };
  const name = (number: number) => `explore-data-01234567-00${number}`;
  const kept = (number: number, why: string, log: string[]): Fields => ({
    number, result: results[number], after_first_ns: (number - 1) * 1e8, snapshot: name(number), why, log,
    again: {
      apiVersion: "v1", kind: "PersistentVolumeClaim", metadata: { name: `again-${number}`, namespace: "demo" },
      spec: { dataSource: { apiGroup: "snapshot.storage.k8s.io", kind: "VolumeSnapshot", name: name(number) } },
    },
  });
  return {
    exploration: "exploration-0123456789abcdef0123456789abcdef", namespace: "demo", claim: "data", node: "node-1",
    volume: "vol-1", seed: 42, requested: 24, every_ns: 1e8, taken: 24, first_taken_ns: START * 1e3, burst_ns: 23e8,
    burst_ended: null, passed: 21, failed: 1, unknown: 1,
    cuts: [
      kept(17, "BackoffLimitExceeded: Job has reached the specified backoff limit", ["120 records were acknowledged, and 87 are there"]),
      kept(20, "the check has not begun within 300 s", []),
    ],
    timeline: Array.from({ length: 24 }, (_, i) => ({
      number: i + 1, result: results[i + 1] ?? "passed", after_first_ns: i * 1e8, written_bytes: i === 0 ? null : 4096 * i,
    })),
    problems: [],
  };
}

/** What the page gets of such a report. */
export function exploration(report = explorationReport()): { messages: unknown[] } {
  const hello = {
    type: "hello", stream: "hostloop.ui/v1", version: "0.2.0", cluster: null, endpoint: null, namespace: "", driver: "",
    t: START, now: START,
  };
  return { messages: [hello, { type: "exploration", t: START, report }] };
}

/** Names and errors that try to be more than text. */
export const HOSTILE = {
  html: '<img src=x onerror="globalThis.owned=1"><script>globalThis.owned=1</script>',
  close: '</script><script>globalThis.owned=1</script>',
  bidi: "abc\u202egnp.exe",
  long: "x".repeat(100_000),
};

export function hostile(): World {
  const world = new World();
  const claim = world.stuck(HOSTILE.html, HOSTILE.close, 1, { node: HOSTILE.html, namespace: "__proto__" });
  world.kubernetesEvent({ kind: "PersistentVolumeClaim", key: claim }, "Warning", HOSTILE.html, HOSTILE.long);
  world.stuck("constructor", HOSTILE.long, 1, { namespace: HOSTILE.bidi });
  world.messages.push(
    { type: "object", op: "set", kind: "PersistentVolumeClaim", key: "a/b", t: world.t, object: { metadata: 7, spec: [1], status: "no" } },
    { type: "object", op: "set", kind: "Pod", key: "a/p", t: world.t, object: { metadata: { uid: "pod-1", namespace: "a" }, spec: { volumes: [null, 1, { persistentVolumeClaim: { claimName: {} } }] } } },
    { type: "event", node: HOSTILE.html, process: "node", event: { t: world.t, kind: "call", name: HOSTILE.html, trace: "a/b", code: 5, request: [] } },
    { type: "report", node: "node-1", t: world.t, report: { pools: "x", volumes: [null, { id: 5 }, { id: HOSTILE.html, mounts: [3] }] } },
    { type: "problem", about: "<b>", text: HOSTILE.html },
    { type: "surprise", t: world.t },
  );
  return world;
}

/** Many claims, one after another: messages in the order of time. */
export function many(claims: number, world = new World(), first = 0): World {
  for (let i = first; i < first + claims; i++) {
    const place = { namespace: `team-${i % 20}`, node: `node-${1 + (i % 2)}` };
    const claim = world.claim(`claim-${i}`, place);
    const pod = world.pod(`pod-${i}`, `claim-${i}`, place);
    world.provision(claim, place);
    if (i % 4 === 0) world.start(pod, claim, place);
  }
  return world;
}
