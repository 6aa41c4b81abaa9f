import assert from "node:assert/strict";
import { test } from "node:test";
import { fold } from "../../src/model/fold.ts";
import { parse } from "../../src/model/message.ts";
import type { Fields } from "../../src/model/json.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { World } from "../generator/world.ts";

const provisioner = (name: string) => ({ metadata: { annotations: { "volume.kubernetes.io/storage-provisioner": name } } });

const CASES: [string, (world: World) => void, string[]][] = [
  ["a pending claim of our class", (w) => w.claim("a"), ["a"]],
  ["our bound claim", (w) => w.provision(w.claim("a")), ["a"]],
  [
    "a claim of another class",
    (w) => {
      w.set("StorageClass", "other", { provisioner: "other.csi" });
      w.set("PersistentVolumeClaim", "demo/a", { spec: { storageClassName: "other" } });
    },
    [],
  ],
  ["a claim of another provisioner", (w) => w.set("PersistentVolumeClaim", w.claim("a"), provisioner("other.csi")), []],
  ["a claim of our provisioner", (w) => w.set("PersistentVolumeClaim", w.claim("a"), provisioner("hostloop.csi.dev")), ["a"]],
  ["a claim bound to a volume of another driver", (w) => w.set("PersistentVolumeClaim", w.claim("a"), { spec: { volumeName: "pv-1" } }), []],
  [
    "our claim bound to a volume that may not be seen",
    (w) => w.set("PersistentVolumeClaim", w.claim("a"), { ...provisioner("hostloop.csi.dev"), spec: { volumeName: "pv-1" } }),
    ["a"],
  ],
  ["a claim without a class", (w) => w.set("PersistentVolumeClaim", "demo/a", { spec: {} }), []],
  ["a claim of a class that does not exist", (w) => w.set("PersistentVolumeClaim", "demo/a", { spec: { storageClassName: "fast" } }), ["a"]],
  [
    "a snapshot of our claim",
    (w) => {
      w.claim("a");
      w.set("VolumeSnapshot", "demo/s", { spec: { source: { persistentVolumeClaimName: "a" } } });
    },
    ["a", "s"],
  ],
  [
    "a snapshot of another driver's claim",
    (w) => {
      w.set("PersistentVolumeClaim", w.claim("a"), provisioner("other.csi"));
      w.set("VolumeSnapshot", "demo/s", { spec: { source: { persistentVolumeClaimName: "a" } } });
    },
    [],
  ],
  [
    "a snapshot with another driver's content",
    (w) => {
      w.claim("a");
      w.set("VolumeSnapshot", "demo/s", {
        spec: { source: { persistentVolumeClaimName: "a" } }, status: { boundVolumeSnapshotContentName: "c" },
      });
    },
    ["a"],
  ],
];

for (const [what, make, names] of CASES) {
  test(`${what} is ${names.length > 0 ? "shown" : "hidden"}`, () => {
    const world = new World();
    make(world);
    assert.deepEqual(rowsOf(stateOf(world)).map((row) => row.name).sort(), names);
  });
}

test("the driver can have another name", () => {
  const world = new World();
  world.set("StorageClass", "other", { provisioner: "other.csi" });
  world.set("PersistentVolumeClaim", "demo/a", { spec: { storageClassName: "other" } });
  world.claim("b");
  (world.messages[0] as Fields)["driver"] = "other.csi";
  assert.deepEqual(rowsOf(stateOf(world)).map((row) => row.name), ["a"]);
});

test("a class that comes after its claims decides about them", () => {
  const world = new World();
  world.set("PersistentVolumeClaim", "demo/a", { spec: { storageClassName: "other" } });
  const state = stateOf(world);
  state.dirty.clear();
  world.set("StorageClass", "other", { provisioner: "other.csi" });
  fold(state, parse(world.messages.at(-1))!);
  assert.equal(state.dirty.size, 1);
  assert.deepEqual(rowsOf(state), []);
});
