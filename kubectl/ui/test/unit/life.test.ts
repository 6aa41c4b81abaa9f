import assert from "node:assert/strict";
import { test } from "node:test";
import { diff } from "../../src/life/diff.ts";
import { items, lanes, extent } from "../../src/life/items.ts";
import { layout, step } from "../../src/life/layout.ts";
import { waits, without } from "../../src/life/milestones.ts";
import { around, folded, linear, pan, placeOf, ticks, timeAt, WHOLE, zoom } from "../../src/life/scale.ts";
import { steps, STEPS } from "../../src/life/steps.ts";
import { allLives, gather } from "../../src/model/lives.ts";
import { stateOf } from "../generator/fold.ts";
import { sharing, wholeLife } from "../generator/stories.ts";
import { TIMING, World } from "../generator/world.ts";

const lifeOf = (world: World) => {
  const state = stateOf(world);
  const life = gather(state, allLives(state)[0]!)!;
  return { state, life, now: state.now };
};

test("the steps of a life in order, with the durations of their calls", () => {
  const { life, now } = lifeOf(wholeLife());
  const taken = steps(life.spans, now);
  assert.deepEqual(taken.map((s) => s.kind.name), STEPS.map((s) => s.name));
  const lasted = taken.filter((s) => s.kind.method !== undefined).map((s) => s.end - s.t);
  assert.deepEqual(lasted, Object.values(TIMING));
});

test("each step has a sentence that names its call, and a link into the specification", () => {
  for (const { method, sentence, link } of STEPS) {
    if (method !== undefined) assert.ok(sentence.startsWith(method), sentence);
    assert.match(link, /^https:\/\/github\.com\/container-storage-interface\/spec\/blob\/v1\.13\.0\/spec\.md#[a-z-]+$/);
  }
});

test("retries of a failed call are one step", () => {
  const world = new World();
  const claim = world.stuck("data", "full", 2);
  world.provision(claim, { node: "node-2" });
  const { life, now } = lifeOf(world);
  const [provision, ...others] = steps(life.spans, now);
  assert.deepEqual([provision!.calls, provision!.code, others.length], [3, "OK", 0]);
});

test("a use lasts from the first publish to the last unpublish", () => {
  const world = new World();
  const claim = world.claim("data");
  const [a, b] = [world.pod("a", "data"), world.pod("b", "data")];
  world.provision(claim);
  world.start(a, claim);
  world.start(b, claim);
  world.wait(10e6).leave(a, claim);
  const { life, now } = lifeOf(world);
  const uses = steps(life.spans, now).filter((s) => s.kind.name === "use");
  const first = steps(life.spans, now).find((s) => s.kind.name === "publish")!;
  assert.deepEqual(uses.map((s) => [s.code, s.t, s.end]), [["", first.end, now]]);
});

test("a use ends with the staging if its unpublish was missed", () => {
  const world = wholeLife();
  const messages = world.messages.filter((m) => (m["event"] as { name?: string } | undefined)?.name !== "NodeUnpublishVolume");
  const { life, now } = lifeOf({ messages } as World);
  const [use] = steps(life.spans, now).filter((s) => s.kind.name === "use");
  assert.equal(use!.code, "OK");
  assert.ok(use!.end < now);
});

test("each gap of a life names who was waited for", () => {
  const { life, now } = lifeOf(wholeLife());
  const found = waits(life, true, now);
  const who = found.map((w) => w.who).filter((w, i, all) => w !== all[i - 1]);
  assert.deepEqual(who, [
    "the user", "kube-scheduler", "hostloop (provisioner)", "kube-controller-manager", "kube-scheduler",
    "kube-controller-manager", "hostloop (attacher)", "kubelet", "kube-controller-manager", "hostloop (attacher)",
    "kube-controller-manager", "hostloop (provisioner)",
  ]);
  const longest = found.toSorted((a, b) => b.end - b.t - (a.end - a.t))[0]!;
  assert.equal(longest.who, "kubelet");
});

test("calls are not waits", () => {
  const cases: [[number, number], [number, number][], [number, number][]][] = [
    [[0, 10], [], [[0, 10]]],
    [[0, 10], [[2, 4]], [[0, 2], [4, 10]]],
    [[0, 10], [[-5, 3], [8, 20]], [[3, 8]]],
    [[0, 10], [[0, 10]], []],
    [[0, 10], [[1, 9], [2, 3]], [[0, 1], [9, 10]]],
  ];
  for (const [[t, end], calls, parts] of cases) {
    const found = without(t, end, calls.map(([a, b]) => ({ t: a, end: b })));
    assert.deepEqual(found.map((p) => [p.t, p.end]), parts);
  }
});

test("differences between versions", () => {
  const cases: [unknown, unknown, [string, string?, string?][]][] = [
    [{ a: 1 }, { a: 1 }, []],
    [{ a: 1 }, { a: 2 }, [["a", "1", "2"]]],
    [{ metadata: { resourceVersion: "1" } }, { metadata: { resourceVersion: "2" } }, []],
    [{ a: {} }, { a: { b: "x" } }, [["a.b", undefined, '"x"']]],
    [{ l: ["x", "y"] }, { l: ["y"] }, [["l.[x]", '"x"', undefined]]],
    [{ c: [{ type: "Ready", status: "False" }] }, { c: [{ type: "Ready", status: "True" }] }, [["c.[Ready].status", '"False"', '"True"']]],
    [{ l: [1, 1] }, { l: [1, 2] }, [["l.[1]", "1", "2"]]],
    [undefined, { a: 1 }, [["", undefined, '{"a":1}']]],
    [JSON.parse('{"__proto__":1}'), JSON.parse('{"__proto__":2}'), [["__proto__", "1", "2"]]],
  ];
  for (const [before, after, changes] of cases) {
    assert.deepEqual(diff(before, after).map((c) => [c.path, c.before, c.after]), changes.map(([p, b, a]) => [p, b, a]));
  }
});

test("the folded scale shows short and long times, and is exact in both directions", () => {
  const scale = folded(0, 86_400e6, [1000, 5000, 86_399e6]);
  const places = scale.t.map((t) => placeOf(scale, t));
  assert.ok(places.every((p, i) => i === 0 || p - places[i - 1]! > 0.03), String(places));
  for (const t of [0, 500, 3000, 40_000e6, 86_400e6]) assert.ok(Math.abs(timeAt(scale, placeOf(scale, t)) - t) < 1e-3 * (1 + t), String(t));
});

test("zooming keeps the place under the pointer, from milliseconds to days", () => {
  const scale = linear(0, 30 * 86_400e6);
  let window = WHOLE;
  for (let i = 0; i < 60; i++) window = zoom(window, 2, 0.25);
  assert.ok(timeAt(scale, window.to) - timeAt(scale, window.from) < 5000);
  assert.ok(window.from <= 0.25 && window.to >= 0.25);
  assert.deepEqual(zoom({ from: 0.25, to: 0.75 }, 2, 0.375), { from: 0.3125, to: 0.5625 });
  assert.deepEqual(zoom(window, 1e-12, 0.25), WHOLE);
  assert.deepEqual(pan({ from: 0.25, to: 0.5 }, -10), { from: 0, to: 0.25 });
  const shown = around(scale, 1000, 2000);
  assert.ok(placeOf(scale, 1000) >= shown.from && placeOf(scale, 2000) <= shown.to);
});

test("ticks have room and nice times", () => {
  const found = ticks(linear(0, 10e6), WHOLE, 800, 76);
  assert.deepEqual(found.map((tick) => tick.label), [0, 1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 7e6, 8e6, 9e6, 10e6]);
  const many = ticks(folded(0, 1e6, Array.from({ length: 200 }, (_, i) => i * 5000)), WHOLE, 800, 76);
  assert.ok(many.every((tick, i) => i === 0 || tick.x - many[i - 1]!.x >= 76));
});

test("an object's bar goes from its creation to its deletion", () => {
  const { life, state, now } = lifeOf(wholeLife());
  const bars = items(life, state, now + 5e6).flatMap((item) => (item.detail.is === "lifetime" ? [item] : []));
  assert.equal(bars.length, 4);
  for (const bar of bars) assert.ok(bar.end <= now, bar.lane);
});

test("lanes never have overlapping bars", () => {
  const { life, state, now } = lifeOf(sharing());
  for (const lane of lanes(items(life, state, now))) {
    const bars = lane.items.filter((item) => !item.moment);
    bars.forEach((bar, i) => i > 0 && assert.ok(bars[i - 1]!.end <= bar.t, `${lane.title} ${bar.label}`));
  }
});

test("only what is visible is drawn, and no two bars on one pixel", () => {
  const world = new World();
  const claim = world.stuck("data", "full", 12);
  world.provision(claim);
  const { life, state, now } = lifeOf(world);
  const all = items(life, state, now);
  const [from, to] = extent(all, now);
  const whole = layout(lanes(all), linear(from, to), WHOLE, 800, false);
  const marks = whole.lanes.flatMap((lane) => lane.placed);
  assert.ok(marks.length < all.length);
  for (const { placed } of whole.lanes) {
    const bars = placed.filter(({ item }) => !item.moment);
    const end = ({ item }: (typeof bars)[number]) => ((item.end - from) / (to - from)) * 800;
    bars.forEach((bar, i) => i > 0 && assert.ok(end(bar) - end(bars[i - 1]!) >= 1, bar.item.label));
  }
  const part = layout(lanes(all), linear(from, to), { from: 0, to: 1e-6 }, 800, false);
  assert.ok(part.lanes.flatMap((lane) => lane.placed).length < 10);
  for (const { x, width } of part.lanes.flatMap((lane) => lane.placed)) assert.ok(x >= -8 && x + width <= 808 + 3);
});

test("arrow keys reach every item", () => {
  const { life, state, now } = lifeOf(wholeLife());
  const found = lanes(items(life, state, now));
  const reached = new Set<string>();
  let row = step(found, undefined, 0, 0);
  while (row) {
    const lane = found.find((l) => l.items.includes(row!))!;
    let item = lane.items[0];
    while (item) {
      reached.add(item.id);
      item = step(found, item, 1, 0);
    }
    row = step(found, row, 0, 1);
  }
  assert.equal(reached.size, found.flatMap((l) => l.items).length);
});
