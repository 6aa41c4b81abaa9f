import assert from "node:assert/strict";
import { test } from "node:test";
import { chains, pools, snapshotBefore } from "../../src/node/chain.ts";
import { colours } from "../../src/node/colours.ts";
import { bars, changes, segments, totals, type Image } from "../../src/node/extents.ts";
import { stateOf } from "../generator/fold.ts";
import { again, sharing, split } from "../generator/stories.ts";
import { World } from "../generator/world.ts";

const image = (id: string, created: number, ...extents: [number, number, number, boolean?][]): Image => ({
  id, pool: "p", created, extents: extents.map(([offset, len, physical, shared = false]) => ({ offset, len, physical, shared })),
});

test("shared blocks have the owner that is oldest", () => {
  const cases: { what: string; images: Image[]; parts: Record<string, [number, number, string, string, boolean][]> }[] = [
    { what: "alone", images: [image("a", 1, [0, 10, 100])], parts: { a: [[0, 10, "a", "", false]] } },
    {
      what: "all shared",
      images: [image("a", 1, [0, 10, 100]), image("b", 2, [0, 10, 100])],
      parts: { a: [[0, 10, "a", "b", false]], b: [[0, 10, "a", "a", false]] },
    },
    {
      what: "a write in the middle",
      images: [image("a", 1, [0, 4, 100], [4, 2, 200], [6, 4, 106]), image("b", 2, [0, 10, 100])],
      parts: {
        a: [[0, 4, "a", "b", false], [4, 2, "a", "", false], [6, 4, "a", "b", false]],
        b: [[0, 4, "a", "a", false], [4, 2, "b", "", false], [6, 4, "a", "a", false]],
      },
    },
    { what: "three", images: [image("c", 3, [0, 4, 0]), image("a", 1, [0, 4, 0]), image("b", 2, [0, 4, 0])], parts: { c: [[0, 4, "a", "a,b", false]] } },
    { what: "shared with an unknown image", images: [image("a", 1, [0, 4, 0, true])], parts: { a: [[0, 4, "a", "", true]] } },
    { what: "the same blocks twice", images: [image("a", 1, [0, 4, 0], [8, 4, 0])], parts: { a: [[0, 4, "a", "", false], [8, 4, "a", "", false]] } },
    {
      what: "another pool",
      images: [image("a", 1, [0, 4, 0]), { ...image("b", 2, [0, 4, 0]), pool: "q" }],
      parts: { a: [[0, 4, "a", "", false]], b: [[0, 4, "b", "", false]] },
    },
    { what: "neighbours", images: [image("a", 1, [0, 4, 0], [4, 4, 100])], parts: { a: [[0, 8, "a", "", false]] } },
  ];
  for (const { what, images, parts } of cases) {
    const found = segments(images);
    for (const [id, expected] of Object.entries(parts)) {
      const shown = found.get(id)!.map((p) => [p.offset, p.len, p.owner, p.others.join(), p.hidden]);
      assert.deepEqual(shown, expected, `${what}: ${id}`);
    }
  }
});

test("own and shared bytes add up to the image", () => {
  const found = segments([image("a", 1, [0, 4, 100], [4, 2, 200], [6, 4, 106]), image("b", 2, [0, 10, 100])]);
  assert.deepEqual(totals(found.get("a")!), { own: 2, shared: 8 });
  assert.deepEqual(totals(found.get("b")!), { own: 2, shared: 8 });
});

test("what differs has changed, and what both have has not", () => {
  const cases: { what: string; earlier: [number, number, number][]; later: [number, number, number][]; found: [number, number][] }[] = [
    { what: "nothing", earlier: [], later: [], found: [] },
    { what: "the same", earlier: [[0, 10, 100]], later: [[0, 10, 100]], found: [] },
    { what: "the same in other pieces", earlier: [[0, 10, 100]], later: [[0, 4, 100], [4, 6, 104]], found: [] },
    { what: "a write in the middle", earlier: [[0, 10, 100]], later: [[0, 4, 100], [4, 2, 200], [6, 4, 106]], found: [[4, 2]] },
    { what: "a write into a hole", earlier: [[0, 4, 100]], later: [[0, 4, 100], [8, 4, 200]], found: [[8, 4]] },
    { what: "a discard", earlier: [[0, 10, 100]], later: [[0, 4, 100], [6, 4, 106]], found: [[4, 2]] },
    { what: "the same block at another place", earlier: [[0, 4, 100]], later: [[4, 4, 100]], found: [[0, 8]] },
    { what: "two writes", earlier: [[0, 10, 100]], later: [[0, 2, 200], [2, 6, 102], [8, 2, 300]], found: [[0, 2], [8, 2]] },
    { what: "all of it", earlier: [], later: [[0, 4, 100], [4, 4, 200]], found: [[0, 8]] },
  ];
  for (const { what, earlier, later, found } of cases) {
    const shown = changes(image("a", 1, ...earlier).extents, image("b", 2, ...later).extents);
    assert.deepEqual(shown.map(({ offset, len }) => [offset, len]), found, what);
  }
});

test("a snapshot is compared with the one before it, of the same volume", () => {
  const snapshot = (id: string, source: string, pool = "p") => ({ id, kind: "snapshot" as const, source, pool });
  const all = [
    { id: "v", kind: "volume" as const, source: "", pool: "p" },
    snapshot("a", "v"), snapshot("other", "w"), snapshot("far", "v", "q"), snapshot("b", "v"), snapshot("lost", ""),
  ];
  for (const [id, before] of [["v", undefined], ["a", undefined], ["b", "a"], ["other", undefined], ["far", undefined], ["lost", undefined]] as const) {
    assert.equal(snapshotBefore(all, all.find((one) => one.id === id)!)?.id, before, id);
  }
  const found = chains(stateOf(again(split(sharing()))), "node-1");
  assert.equal(snapshotBefore(found, found.find(({ id }) => id === "snap-p1-after")!)?.name, "demo/before");
});

test("bars are at least visible and never more than pixels", () => {
  const many = segments([image("a", 1, ...Array.from({ length: 20_000 }, (_, i): [number, number, number] => [i * 10, 5, i * 20]))]);
  const drawn = bars(many.get("a")!, 200_000, 800);
  assert.ok(drawn.length <= 800, String(drawn.length));
  const [small] = bars(segments([image("b", 1, [0, 1, 0])]).get("b")!, 1e12, 800);
  assert.ok(small!.width > 0.5);
});

test("a chain goes from the image to the pod", () => {
  const state = stateOf(sharing());
  const [volume, snapshot] = chains(state, "node-1");
  assert.equal(volume!.name, "demo/data");
  assert.deepEqual(volume!.loops.map((l) => l.device), ["/dev/loop0"]);
  assert.deepEqual(volume!.mounts.map((m) => [m.staging, m.pod]), [[true, ""], [false, "demo/web"]]);
  assert.deepEqual([snapshot!.kind, snapshot!.name, snapshot!.loops.length], ["snapshot", "demo/before", 0]);
  assert.equal(snapshot!.life.split(":")[0], "snapshot");
});

test("a loop device over another one belongs to the same image", () => {
  const world = new World();
  world.report("node-1", [{ id: "vol", pool: "default" }], [], [
    { device: "/dev/loop0", object: "vol" }, { device: "/dev/loop1", object: "/dev/loop0", read_only: true },
  ], [{ path: "/pods/x", object: "/dev/loop1", kind: "device" }]);
  const [chain] = chains(stateOf(world), "node-1");
  assert.deepEqual(chain!.loops.map((l) => [l.device, l.readOnly]), [["/dev/loop0", false], ["/dev/loop1", true]]);
  assert.equal(chain!.mounts.length, 1);
});

test("the nodes that use a volume together are named", () => {
  const world = new World();
  world.report("node-1", [{ id: "vol", pool: "default", reach: "kernel", users: [
    { node: "node-1", published: true, pins: true },
    { node: "node-2", published: true, pins: false },
    { node: "node-3", published: false, pins: true },
  ] }, { id: "own", pool: "default", reach: "node", users: [{ node: "node-1", published: true, pins: false }] }], [], [], []);
  const found = chains(stateOf(world), "node-1");
  assert.deepEqual(found.map((chain) => chain.users), [["node-1", "node-2 (attached)", "node-3 (held)"], []]);
});

test("a snapshot costs nothing, and a write splits it", () => {
  const shares = (world: World) => {
    const state = stateOf(world);
    const found = segments(chains(state, "node-1").map(({ id, pool, created }) => ({ id, pool, created, extents: state.extents.get(id)!.extents })));
    return [...found.values()].map((parts) => totals(parts)).map(({ own, shared }) => [own / 2 ** 20, shared / 2 ** 20]);
  };
  assert.deepEqual(shares(sharing()), [[0, 40], [0, 40]]);
  assert.deepEqual(shares(split(sharing())), [[8, 32], [8, 32]]);
});

test("pools have their room", () => {
  const [pool] = pools(stateOf(sharing()), "node-1");
  assert.deepEqual([pool!.size, pool!.available, pool!.reflinks], [100 * 2 ** 30, 49 * 2 ** 30, true]);
});

test("neighbours have different colours", () => {
  const all = [...colours(["a", "b", "c", "d"]).values()];
  assert.equal(new Set(all).size, 4);
});
