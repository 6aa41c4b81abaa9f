import assert from "node:assert/strict";
import { test } from "node:test";
import { gather } from "../../src/model/lives.ts";
import { choices, select } from "../../src/model/rows.ts";
import { verdictOf, type Tone } from "../../src/model/verdict.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { FULL, severalStates, wholeLife } from "../generator/stories.ts";
import { volumeId, World } from "../generator/world.ts";

interface Case {
  what: string;
  make: (world: World) => void;
  word: string;
  tone: Tone;
  reason: RegExp;
}

const bound = (world: World) => {
  const claim = world.claim("data");
  world.provision(claim);
  return claim;
};

const underWay = (world: World, name: string, claim: string) =>
  world.event("node-1", "node", {
    kind: "call", name, t: world.t, id: 900, trace: world.uidOf("PersistentVolumeClaim", claim), request: { volume_id: volumeId(claim) },
  });

const CASES: Case[] = [
  { what: "a claim without a pod", make: (w) => w.claim("data"), word: "Pending", tone: "wait", reason: /^waits for its first pod$/ },
  { what: "a bound claim", make: bound, word: "Bound", tone: "good", reason: /^$/ },
  {
    what: "a claim with a note",
    make: (w) => w.judge("claim", bound(w), "Bound", "good", { note: "it is being expanded" }),
    word: "Bound", tone: "good", reason: /^it is being expanded$/,
  },
  {
    what: "a running pod",
    make: (w) => w.start(w.pod("web", "data"), bound(w)),
    word: "published", tone: "good", reason: /^$/,
  },
  { what: "CreateVolume under way", make: (w) => underWay(w, "CreateVolume", w.claim("data")), word: "Pending", tone: "busy", reason: /^CreateVolume is under way\.$/ },
  {
    what: "a call under way at something stuck",
    make: (w) => {
      const claim = w.claim("data");
      w.judge("claim", claim, "stuck", "bad", { stuck: "ProvisioningFailed: why" });
      underWay(w, "CreateVolume", claim);
    },
    word: "stuck", tone: "bad", reason: /^ProvisioningFailed: why \(0 s ago\)$/,
  },
  {
    what: "CreateVolume that fails",
    make: (w) => w.stuck("data", FULL),
    word: "stuck", tone: "bad", reason: /^ProvisioningFailed: pool default.* \(0 s ago\)\. The provisioner tries again in 4/,
  },
  {
    what: "a controller that backs off",
    make: (w) => {
      const claim = w.claim("data");
      w.judge("claim", claim, "stuck", "bad", { stuck: "why" });
      w.work("node-1", "provisioner", w.uidOf("PersistentVolumeClaim", claim), "backing off", { next: 8e6 });
    },
    word: "stuck", tone: "bad", reason: /^why \(0 s ago\)\. The provisioner tries again in 8/,
  },
  {
    what: "a controller that has worked since",
    make: (w) => {
      const claim = w.claim("data");
      const uid = w.uidOf("PersistentVolumeClaim", claim);
      w.judge("claim", claim, "stuck", "bad", { stuck: "why" });
      w.work("node-1", "provisioner", uid, "backing off", { next: 8e6 });
      w.wait(1e3).work("node-1", "provisioner", uid, "working");
    },
    word: "stuck", tone: "bad", reason: /^why \(0 s ago\)$/,
  },
  {
    what: "something stuck for a while",
    make: (w) => {
      w.judge("claim", bound(w), "published, stuck", "bad", { stuck: "its filesystem is frozen" });
      w.wait(150e6).lease();
    },
    word: "published, stuck", tone: "bad", reason: /^its filesystem is frozen \(2 min ago\)$/,
  },
  { what: "a claim without a verdict", make: (w) => w.judge("claim", w.claim("data")), word: "Unknown", tone: "wait", reason: /^$/ },
  { what: "a deleted claim without a verdict", make: (w) => {
    const claim = w.claim("data");
    w.remove("PersistentVolumeClaim", claim);
    w.judge("claim", claim);
  }, word: "Deleted", tone: "gone", reason: /^$/ },
  {
    what: "a retained volume",
    make: (w) => {
      const claim = bound(w);
      w.judge("claim", claim, "Released", "gone", { note: "kept: its policy is Retain", volume: volumeId(claim) });
      w.remove("PersistentVolumeClaim", claim);
    },
    word: "Released", tone: "gone", reason: /^kept: its policy is Retain$/,
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

test("a snapshot without a cluster ends as deleted", () => {
  const world = new World();
  world.call("node-1", "DeleteSnapshot", 5e3, "snap-1", { request: { snapshot_id: "snap-1" } });
  const state = stateOf(world);
  const life = gather(state, "volume:snap-1");
  assert.equal(verdictOf(life!, state, world.t).word, "Deleted");
});

test("a verdict that can't be read is none", () => {
  const said = { words: "Bound", tone: "good", stuck: null, note: null };
  const cases: [unknown, string][] = [
    [said, "Bound"], [{ ...said, tone: "fine" }, "Unknown"], [{ ...said, words: 5 }, "Unknown"], [[], "Unknown"],
    [{ ...said, stuck: { why: 7 }, note: {} }, "Bound"],
  ];
  for (const [verdict, word] of cases) {
    const world = new World();
    const claim = world.claim("data");
    world.messages.push({ type: "verdict", t: world.t, lives: [`claim:${world.uidOf("PersistentVolumeClaim", claim)}`, 3], verdict });
    const [row] = rowsOf(stateOf(world));
    assert.equal(row!.verdict.word, word, JSON.stringify(verdict));
  }
});

test("a whole life ends as deleted, with all steps done", () => {
  const [row] = rowsOf(stateOf(wholeLife()));
  assert.equal(row!.verdict.word, "Deleted");
  assert.deepEqual(row!.progress, Array(9).fill("done"));
});

test("the stuck ones are first, and filters choose", () => {
  const rows = rowsOf(stateOf(severalStates()));
  assert.deepEqual(rows.map((row) => row.name), ["full", "unused", "before", "data"]);
  const none = { namespace: "", node: "", text: "", state: "" };
  const cases: [object, string[]][] = [
    [{ state: "stuck" }, ["full"]],
    [{ node: "node-1" }, ["before", "data"]],
    [{ text: "DATA publ" }, ["data"]],
    [{ text: "pvc-" }, ["data"]],
    [{ namespace: "other" }, []],
    [{ state: "busy" }, ["unused"]],
  ];
  for (const [filter, names] of cases) {
    assert.deepEqual(select(rows, { ...none, ...filter }).map((row) => row.name), names, JSON.stringify(filter));
  }
  assert.deepEqual(choices(rows, "node"), ["node-1", "node-2"]);
});
