import assert from "node:assert/strict";
import { test } from "node:test";
import { expired, leases, nodeRows } from "../../src/cluster/nodes.ts";
import { charts, parseMetric, rate, total } from "../../src/cluster/series.ts";
import { stateOf } from "../generator/fold.ts";
import { sharing } from "../generator/stories.ts";
import { World } from "../generator/world.ts";

test("metrics have a name and labels", () => {
  assert.deepEqual(parseMetric("up"), { name: "up", labels: new Map() });
  assert.deepEqual(parseMetric('a{b="c",d="e\\"f"}'), { name: "a", labels: new Map([["b", "c"], ["d", 'e\\"f']]) });
});

test("a counter becomes a rate, and begins again after a restart", () => {
  assert.deepEqual(rate({ t: [0, 5e6, 10e6, 15e6], value: [0, 10, 15, 5] }), { t: [5e6, 10e6, 15e6], value: [2, 1, 1] });
});

test("nodes add up", () => {
  const sum = total([{ t: [0, 5e6], value: [1, 2] }, { t: [1e6], value: [10] }]);
  assert.deepEqual(sum, { t: [0, 5e6], value: [11, 12] });
});

test("charts are of what is there", () => {
  const found = charts(stateOf(sharing()));
  assert.deepEqual(found.map((c) => [c.title, c.unit, c.value.at(-1)]), [
    ["plugin operations: NodeStageVolume", "per second", 3],
    ["pool available: default", "bytes", 49 * 2 ** 30],
    ["workqueue depth: provisioner", "", 0],
  ]);
});

test("the node with the most room is first", () => {
  const world = sharing();
  world.set("CSIStorageCapacity", "hostloop/a", { capacity: "80Gi", nodeTopology: { matchLabels: { "topology.hostloop.csi.dev/node": "node-2" } } });
  world.set("Node", "node-2", { spec: { unschedulable: true } });
  const rows = nodeRows(stateOf(world));
  assert.deepEqual(rows.map((n) => [n.name, n.state, n.room]), [["node-2", "cordoned", 80 * 2 ** 30], ["node-1", "ready", 49 * 2 ** 30]]);
});

test("changes of leases are kept, the newest hundred", () => {
  const world = new World();
  for (let i = 0; i < 120; i++) world.wait(1000).event("node-1", "controller", { kind: "lease", name: i % 2 === 0 ? "acquired" : "lost", t: world.t, trace: "l", about: "l" });
  const { leaseChanges } = stateOf(world);
  assert.deepEqual([leaseChanges.length, leaseChanges.at(-1)!.name], [100, "lost"]);
});

test("the metrics of a node and of the controller beside it are two series", () => {
  const world = new World();
  world.metrics("node-1", { up: 1 });
  world.messages.push({ ...world.messages.at(-1), process: "controller", values: { up: 2 } });
  assert.deepEqual([...stateOf(world).metrics.get("up")!].map(([source, series]) => [source, series.value]), [["node-1", [1]], ["node-1 controller", [2]]]);
});

test("a lease expires", () => {
  const world = new World();
  const [lease] = leases(stateOf(world));
  assert.equal(expired(lease!, world.t + 10e6), false);
  assert.equal(expired(lease!, world.t + 20e6), true);
  assert.equal(expired({ ...lease!, holder: "" }, world.t), true);
});
