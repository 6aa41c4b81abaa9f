import assert from "node:assert/strict";
import { test } from "node:test";
import { choices, select } from "../../src/model/rows.ts";
import { unsettledFailure } from "../../src/model/calls.ts";
import type { Span } from "../../src/model/state.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { FULL, severalStates, wholeLife } from "../generator/stories.ts";
import { iso, volumeId, World } from "../generator/world.ts";
import type { Fields } from "../../src/model/json.ts";

interface Case {
  what: string;
  make: (world: World) => void;
  word: string;
  tone: string;
  reason: RegExp;
}

const bound = (world: World) => {
  const claim = world.claim("data");
  world.provision(claim);
  return claim;
};

const running = (world: World) => {
  const claim = world.claim("data");
  const pod = world.pod("web", "data");
  world.provision(claim);
  world.start(pod, claim);
  return { claim, pod };
};

const report = (world: World, claim: string, change: Fields = {}, pool: Fields = {}) => {
  world.report("node-1", [{ id: volumeId(claim), pool: "default", size_bytes: 1, mounts: [], ...change }]);
  const last = world.messages.at(-1)!;
  Object.assign(((last["report"] as Fields)["pools"] as Fields[])[0]!, pool);
};

const CASES: Case[] = [
  { what: "a claim without a pod", make: (w) => w.claim("data"), word: "Waiting", tone: "wait", reason: /first pod/ },
  {
    what: "a claim with a new pod",
    make: (w) => { w.claim("data"); w.pod("web", "data"); },
    word: "Scheduling", tone: "wait", reason: /has not chosen a node for pod web/,
  },
  {
    what: "a claim with a pod for a minute",
    make: (w) => { w.claim("data"); w.pod("web", "data"); w.wait(150e6).lease(); },
    word: "Scheduling", tone: "bad", reason: /pod web \(for 2 min/,
  },
  {
    what: "a pod that fits nowhere",
    make: (w) => {
      w.claim("data");
      w.pod("web", "data");
      w.set("Pod", "demo/web", { status: { conditions: [{ type: "PodScheduled", status: "False", message: "0/2 nodes are available" }] } });
    },
    word: "Unschedulable", tone: "bad", reason: /Pod web: 0\/2 nodes are available/,
  },
  {
    what: "CreateVolume under way",
    make: (w) => {
      const claim = w.claim("data");
      w.event("node-1", "node", { kind: "call", name: "CreateVolume", t: w.t, id: 900, trace: w.uidOf("PersistentVolumeClaim", claim) });
    },
    word: "Provisioning", tone: "busy", reason: /under way/,
  },
  { what: "CreateVolume that fails", make: (w) => w.stuck("data", FULL), word: "CreateVolume fails", tone: "bad", reason: /failed 3 times with RESOURCE_EXHAUSTED: pool default.*The provisioner/ },
  {
    what: "CreateVolume that is aborted once",
    make: (w) => {
      const claim = w.claim("data");
      w.pod("web", "data");
      w.set("PersistentVolumeClaim", claim, { metadata: { annotations: { "volume.kubernetes.io/selected-node": "node-1" } } });
      w.call("node-1", "CreateVolume", 5, w.uidOf("PersistentVolumeClaim", claim), { code: "ABORTED" });
    },
    word: "Pending", tone: "wait", reason: /waits for its volume/,
  },
  {
    what: "a warning about the claim",
    make: (w) => w.kubernetesEvent({ kind: "PersistentVolumeClaim", key: w.claim("data") }, "Warning", "ProvisioningFailed", "no capacity"),
    word: "Pending", tone: "bad", reason: /no capacity/,
  },
  {
    what: "a class that does not exist",
    make: (w) => w.set("PersistentVolumeClaim", "demo/data", { spec: { storageClassName: "fast" } }),
    word: "Pending", tone: "bad", reason: /StorageClass fast does not exist/,
  },
  { what: "a bound claim", make: bound, word: "Bound", tone: "good", reason: /^$/ },
  {
    what: "a claim that lost its volume",
    make: (w) => w.set("PersistentVolumeClaim", bound(w), { status: { phase: "Lost" } }),
    word: "Lost", tone: "bad", reason: /does not exist any more/,
  },
  { what: "a running pod", make: running, word: "In use", tone: "good", reason: /By web/ },
  {
    what: "an attachment that fails",
    make: (w) => {
      const claim = bound(w);
      w.set("VolumeAttachment", "csi-1", {
        spec: { nodeName: "node-1", source: { persistentVolumeName: `pvc-${w.uidOf("PersistentVolumeClaim", claim)}` } },
        status: { attached: false, attachError: { message: "no such node" } },
      });
    },
    word: "Attach fails", tone: "bad", reason: /node node-1: no such node/,
  },
  {
    what: "a mount that fails",
    make: (w) => {
      bound(w);
      const pod = w.pod("web", "data");
      w.kubernetesEvent({ kind: "Pod", key: pod }, "Warning", "FailedMount", "MountVolume.SetUp failed");
    },
    word: "Mount fails", tone: "bad", reason: /Pod web: MountVolume.SetUp failed/,
  },
  {
    what: "staging that fails",
    make: (w) => {
      const claim = bound(w);
      w.pod("web", "data");
      w.call("node-1", "NodeStageVolume", 5, volumeId(claim), { code: "INTERNAL", error: "mount failed" });
    },
    word: "NodeStageVolume fails", tone: "bad", reason: /failed with INTERNAL: mount failed/,
  },
  {
    what: "staging that failed before the pod was deleted",
    make: (w) => {
      const claim = bound(w);
      const pod = w.pod("web", "data");
      w.call("node-1", "NodeStageVolume", 5, volumeId(claim), { code: "INTERNAL" });
      w.remove("Pod", pod);
    },
    word: "Bound", tone: "good", reason: /^$/,
  },
  {
    what: "a deleted claim in use",
    make: (w) => {
      const { claim } = running(w);
      w.set("PersistentVolumeClaim", claim, { metadata: { deletionTimestamp: iso(w.t) } });
      w.wait(150e6).lease();
    },
    word: "Terminating", tone: "bad", reason: /until no pod uses it: web/,
  },
  {
    what: "a claim that grows",
    make: (w) => w.set("PersistentVolumeClaim", bound(w), { spec: { resources: { requests: { storage: "2Gi" } } } }),
    word: "Resizing", tone: "busy", reason: /from 1 GiB to 2 GiB/,
  },
  {
    what: "a frozen filesystem",
    make: (w) => report(w, running(w).claim, { frozen_since_ns: (w.t - 70e6) * 1e3 }),
    word: "Frozen", tone: "bad", reason: /frozen for a snapshot \(for/,
  },
  {
    what: "a missing pool",
    make: (w) => report(w, running(w).claim, {}, { state: "missing", why: "not mounted" }),
    word: "Pool missing", tone: "bad", reason: /Pool default: not mounted/,
  },
];

for (const { what, make, word, tone, reason } of CASES) {
  test(`state of ${what}`, () => {
    const world = new World();
    make(world);
    const [row] = rowsOf(stateOf(world));
    assert.deepEqual([row!.verdict.word, row!.verdict.tone], [word, tone], row!.verdict.reason);
    assert.match(row!.verdict.reason, reason);
    assert.equal(row!.verdict.stuck, tone === "bad");
  });
}

test("a whole life ends as deleted, with all steps done", () => {
  const [row] = rowsOf(stateOf(wholeLife()));
  assert.equal(row!.verdict.word, "Deleted");
  assert.deepEqual(row!.progress, Array(9).fill("done"));
});

test("a failure lasts until the same call succeeds or is undone", () => {
  const call = (name: string, code: string, t: number) => ({ name, code, t, kind: "call" }) as Span;
  const cases: [string, Span[], string | undefined][] = [
    ["none", [call("CreateVolume", "OK", 1)], undefined],
    ["open", [call("CreateVolume", "INTERNAL", 1)], "CreateVolume"],
    ["settled", [call("CreateVolume", "INTERNAL", 1), call("CreateVolume", "OK", 2)], undefined],
    ["undone", [call("NodeStageVolume", "INTERNAL", 1), call("NodeUnstageVolume", "OK", 2)], undefined],
    ["passing", [call("NodeStageVolume", "ABORTED", 1), call("NodeStageVolume", "ABORTED", 2)], undefined],
    ["lasting", [1, 2, 3].map((t) => call("NodeStageVolume", "ABORTED", t)), "NodeStageVolume"],
    ["newest", [call("A", "INTERNAL", 1), call("B", "INTERNAL", 2)], "B"],
    ["under way", [call("A", "", 1)], undefined],
  ];
  for (const [what, calls, name] of cases) assert.equal(unsettledFailure(calls)?.span.name, name, what);
});

test("the stuck ones are first, and filters choose", () => {
  const rows = rowsOf(stateOf(severalStates()));
  assert.deepEqual(rows.map((row) => row.name), ["full", "unused", "before", "data"]);
  const none = { namespace: "", node: "", text: "", state: "" };
  const cases: [object, string[]][] = [
    [{ state: "stuck" }, ["full"]],
    [{ node: "node-1" }, ["before", "data"]],
    [{ text: "DATA in" }, ["data"]],
    [{ text: "pvc-" }, ["data"]],
    [{ namespace: "other" }, []],
    [{ state: "busy" }, ["unused"]],
  ];
  for (const [filter, names] of cases) {
    assert.deepEqual(select(rows, { ...none, ...filter }).map((row) => row.name), names, JSON.stringify(filter));
  }
  assert.deepEqual(choices(rows, "node"), ["node-1", "node-2"]);
});
