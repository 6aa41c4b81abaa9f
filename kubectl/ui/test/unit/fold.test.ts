import assert from "node:assert/strict";
import { test } from "node:test";
import { fold, prune } from "../../src/model/fold.ts";
import { parse } from "../../src/model/message.ts";
import { emptyState, existing, type State } from "../../src/model/state.ts";
import { gather, allLives } from "../../src/model/lives.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { hostile, sharing, volumeReport, wholeLife } from "../generator/stories.ts";
import { START, World } from "../generator/world.ts";

const feed = (state: State, ...values: unknown[]) => {
  for (const value of values) fold(state, parse(value)!);
  return state;
};

const pod = (uid: string, version: string, more = {}) => ({
  type: "object", op: "set", kind: "Pod", key: "d/p", t: START,
  object: { metadata: { uid, namespace: "d", name: "p", resourceVersion: version }, ...more },
});

test("a message of an unknown type is nothing", () => {
  for (const value of [null, 5, "x", {}, { type: "new" }, { type: "object" }, { type: "event", event: {} }, { type: "event", event: { t: 1 } }]) {
    assert.equal(parse(value), null, JSON.stringify(value));
  }
});

test("an object has its versions, and a repeated one is not a version", () => {
  const state = feed(emptyState(), pod("u", "1"), pod("u", "2"), pod("u", "2"));
  const [tracked] = existing(state, "Pod");
  assert.equal(tracked!.versions.length, 2);
});

test("another UID is another object, and the first one has ended", () => {
  const state = feed(emptyState(), pod("u", "1"), { ...pod("v", "2"), t: START + 5 });
  const all = [...state.kinds.get("Pod")!];
  assert.deepEqual(all.map((o) => [o.uid, o.deleted]), [["u", START + 5], ["v", undefined]]);
});

test("versions between the first and the last ones are left out", () => {
  const state = emptyState();
  for (let i = 0; i < 200; i++) feed(state, pod("u", String(i)));
  const [tracked] = existing(state, "Pod");
  assert.equal(tracked!.versions.length, 64);
  assert.equal(tracked!.dropped, 136);
});

test("an object that a new listing lacks was deleted", () => {
  const hello = { type: "hello", t: START, stream: "x" };
  const state = feed(emptyState(), hello, pod("u", "1"), hello);
  const other = { ...pod("v", "7"), key: "d/q" };
  feed(state, other, hello, other);
  assert.equal(existing(state, "Pod").length, 2, "not before the listing is complete");
  feed(state, { type: "listed", t: START + 9 });
  assert.deepEqual(existing(state, "Pod").map((o) => o.key), ["d/q"]);
});

test("a repeated event counts once, and a later one completes a call", () => {
  const event = (seq: number, more: object) => ({
    type: "event", node: "n", process: "node", event: { seq, boot: "b", t: START, kind: "call", name: "CreateVolume", id: 1, trace: "c", ...more },
  });
  const state = feed(emptyState(), event(1, {}), event(1, {}), event(2, { us: 7, code: "OK", answer: { volume_id: "vol" } }));
  assert.equal(state.spans.size, 1);
  const [span] = state.subjects.get("vol")!;
  assert.equal(span!.us, 7);
  assert.equal(span!.trace, "c");
});

test("work is completed by its end, and the waits around it stay", () => {
  const event = (seq: number, kind: string, state: string, more = {}) => ({
    type: "event", node: "n", process: "node", event: { seq, boot: "b", t: START + seq, kind, name: "provisioner", id: 1, trace: "c", state, ...more },
  });
  const state = feed(
    emptyState(), event(1, "queue", "queued", { us: 1 }), event(2, "work", "working"), event(3, "work", "failed", { us: 9 }),
    event(4, "queue", "backing off", { next: 5 }), event(4, "queue", "backing off", { next: 5 }),
  );
  assert.deepEqual(state.subjects.get("c")!.map((s) => [s.kind, s.state, s.us]), [
    ["queue", "queued", 1], ["work", "failed", 9], ["queue", "backing off", undefined],
  ]);
});

test("a life has its objects, its calls with their phases, and its IDs", () => {
  const state = stateOf(wholeLife());
  const key = allLives(state)[0]!;
  const life = gather(state, key)!;
  assert.deepEqual(life.objects.map((o) => o.kind).sort(), ["PersistentVolume", "PersistentVolumeClaim", "Pod", "VolumeAttachment"]);
  assert.equal(life.spans.filter((s) => s.kind === "call").length, 8);
  assert.equal(life.spans.filter((s) => s.kind === "phase").length, 12);
  assert.equal(life.ids.length, 1);
});

test("a volume that the claim names belongs to it, also before it knows the claim", () => {
  const world = new World();
  world.set("PersistentVolumeClaim", world.claim("data"), { spec: { volumeName: "static" } });
  world.set("PersistentVolume", "static", { spec: { csi: { volumeHandle: "vol" } } });
  const state = stateOf(world);
  assert.deepEqual(gather(state, allLives(state)[0]!)!.ids, ["vol"]);
});

test("a snapshot's calls belong to it and to its source", () => {
  const state = stateOf(sharing());
  for (const key of allLives(state)) {
    const names = gather(state, key)!.spans.map((span) => span.name);
    assert.ok(names.includes("CreateSnapshot") && names.includes("freeze"), key);
  }
});

test("a pod of the same name in the life of a later claim belongs to that one", () => {
  const world = new World();
  for (let i = 0; i < 2; i++) {
    const claim = world.wait(10e6).claim("data");
    const user = world.wait(1e6).pod("web", "data");
    world.provision(claim);
    world.start(user, claim);
    world.wait(10e6).stop(user, claim);
    world.wait(1e6).delete(claim);
  }
  const state = stateOf(world);
  for (const key of allLives(state)) {
    assert.equal(gather(state, key)!.objects.filter((o) => o.kind === "Pod").length, 1, key);
  }
});

test("the sharing of an image has a history", () => {
  const state = stateOf(sharing());
  const [extents] = [...state.extents.values()];
  assert.deepEqual(extents!.history.map(({ shared, own }) => [shared > 0, own > 0]), [[false, true], [true, false]]);
});

test("the same messages give the same rows", () => {
  const { messages } = wholeLife();
  assert.deepEqual(rowsOf(stateOf({ messages })), rowsOf(stateOf({ messages })));
});

test("pruning forgets what ended, and keeps what exists", () => {
  const world = wholeLife();
  const end = world.t + 1;
  sharing(world);
  const state = stateOf(world);
  prune(state, end);
  assert.equal(allLives(state).length, 2);
  assert.ok([...state.spans.values()].every((span) => span.t + (span.us ?? 0) >= end));
  assert.deepEqual(rowsOf(state).map((row) => row.label).sort(), ["claim", "snapshot"]);
});

test("hostile messages break nothing", () => {
  const state = stateOf(hostile());
  const rows = rowsOf(state);
  assert.equal(rows.length, 4);
  assert.ok(rows.some((row) => row.namespace === "__proto__" && row.verdict.stuck));
  assert.equal(({} as Record<string, unknown>)["owned"], undefined);
});

test("a reported volume is a life of its own until its claim is known", () => {
  const world = new World();
  const claim = world.claim("data");
  const id = world.provision(claim);
  const volume = { ...volumeReport(world, claim), staged_at: null, mounts: [] };
  const report = { type: "report", node: "node-1", t: world.t, report: { volumes: [volume] } };
  const first = world.messages.findIndex((m) => m["kind"] === "PersistentVolume");
  const state = stateOf({ messages: [...world.messages.slice(0, first), report] });
  assert.deepEqual(rowsOf(state).map((row) => row.label).sort(), ["claim", "volume"]);
  for (const message of world.messages.slice(first)) feed(state, message);
  assert.ok(state.dirty.has(`volume:${id}`));
  assert.deepEqual(rowsOf(state).map((row) => row.label), ["claim"]);
});

test("without Kubernetes, calls and reports show the volumes", () => {
  const call = (seq: number, name: string, code: string, more: object) => ({
    type: "event", node: "", process: "node", event: { seq, boot: "b", t: START + seq, us: 5, kind: "call", name, trace: "vol-1", id: seq, code, ...more },
  });
  const messages = [
    { type: "hello", t: START, stream: "hostloop.ui/v1", cluster: null, endpoint: "unix:///csi.sock" },
    call(1, "CreateVolume", "OK", { request: { name: "demo" }, answer: { volume_id: "vol-1" } }),
  ];
  const words = (...more: unknown[]) => rowsOf(stateOf({ messages: [...messages, ...more] })).map((row) => [row.name, row.verdict.word]);
  assert.deepEqual(words(), [["vol-1", "Exists"]]);
  const report = { type: "report", node: "", t: START + 2, report: { volumes: [{ id: "vol-1", name: "demo", mounts: [] }] } };
  assert.deepEqual(words(report), [["demo", "Exists"]]);
  const said = { words: "Bound", tone: "good", stuck: null, note: null };
  const judged = { type: "verdict", t: START + 3, lives: ["volume:vol-1"], verdict: said };
  assert.deepEqual(words(report, judged), [["demo", "Bound"]]);
  assert.deepEqual(words(call(2, "DeleteVolume", "OK", { request: { volume_id: "vol-1" } })), [["vol-1", "Deleted"]]);
});
