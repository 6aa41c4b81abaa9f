import assert from "node:assert/strict";
import { test } from "node:test";
import { cutItems } from "../../src/life/cut-items.ts";
import { lanes } from "../../src/life/items.ts";
import { parse } from "../../src/model/message.ts";
import { readExploration, viewsOf } from "../../src/model/exploration.ts";
import { emptyState } from "../../src/model/state.ts";
import { base } from "../../src/recording/history.ts";
import { stateOf } from "../generator/fold.ts";
import { exploration, explorationReport, HOSTILE, wholeLife } from "../generator/stories.ts";
import { START } from "../generator/world.ts";

test("each cut has its moment, its result and its snapshot", () => {
  const found = readExploration(stateOf(exploration()).exploration!);
  assert.equal(found.cuts.length, 24);
  assert.deepEqual(found.cuts[0], { number: 1, result: "passed", t: START, written: undefined, kept: undefined });
  const failed = found.cuts[16]!;
  assert.deepEqual([failed.number, failed.result, failed.t, failed.written], [17, "failed", START + 1.6e6, 16 * 4096]);
  assert.equal(failed.kept?.snapshot, "explore-data-01234567-0017");
  assert.equal(failed.kept?.again["kind"], "PersistentVolumeClaim");
  assert.deepEqual([found.cuts[19]!.result, found.cuts[23]!.result], ["unknown", "unchecked"]);
  assert.equal(found.command, "kubectl hostloop explore data -n demo --cuts 24 --every 100ms --seed 42 --check FILE");
});

test("a report without a timeline has the cuts that have not passed", () => {
  const { timeline: _, ...older } = explorationReport();
  assert.deepEqual(readExploration(older).cuts.map((cut) => [cut.number, cut.result]), [[17, "failed"], [20, "unknown"]]);
});

test("a report of something else has no cuts", () => {
  for (const report of [{}, { timeline: "x", cuts: 7 }, { timeline: [null, 3, {}, { number: "1" }], cuts: [[], { number: 1 }] }]) {
    const found = readExploration(report);
    assert.deepEqual([found.cuts, found.command], [[], ""], JSON.stringify(report));
    assert.deepEqual(cutItems(found), []);
  }
});

test("no name of a report gets into a command unless Kubernetes takes it", () => {
  for (const claim of ["data; reboot", "$(reboot)", "-h", "data\n", HOSTILE.html, ""]) {
    assert.equal(readExploration({ ...explorationReport(), claim }).command, "", claim);
    assert.equal(readExploration({ ...explorationReport(), namespace: claim }).command, "", claim);
  }
});

test("results and writes have lanes of their own", () => {
  const all = cutItems(readExploration(explorationReport()));
  const found = lanes(all).map((lane) => [lane.group, lane.title, lane.items.length]);
  assert.deepEqual(found, [
    ["cuts", "Passed", 21], ["cuts", "Failed", 1], ["cuts", "Unknown", 1], ["cuts", "Not checked", 1], ["writes", "Written", 23],
  ]);
  const shares = all.flatMap(({ detail }) => (detail.is === "written" ? [detail.share] : []));
  assert.deepEqual([shares[0], shares.at(-1)], [1 / 23, 1]);
});

test("the report of an exploration is a view, and alone it is the only one", () => {
  assert.deepEqual(viewsOf(emptyState()), ["volumes", "life", "node", "cluster"]);
  assert.deepEqual(viewsOf(stateOf(exploration())), ["exploration"]);
  const both = { messages: [...wholeLife().messages, ...exploration().messages] };
  assert.deepEqual(viewsOf(stateOf(both)), ["volumes", "life", "node", "cluster", "exploration"]);
});

test("a full history keeps the report", () => {
  const entries = exploration().messages.map((raw) => ({ message: parse(raw)!, raw, size: 1 }));
  assert.deepEqual(base(entries).map((entry) => entry.message.type), ["hello", "exploration"]);
});
