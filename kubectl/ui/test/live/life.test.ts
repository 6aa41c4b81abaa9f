/** A claim's life on a cluster, as the page shows it while it happens. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { cells, eventually, openLife, settled } from "../browser/harness.ts";
import { drawing, replayed } from "../browser/replay.ts";
import { claim, create, get, inPod, kubectl, NAMESPACE, pod, remove, snapshot, until, variable } from "./cluster.ts";
import { allCells, examine, keepFailures, mebibytes, milliseconds, openView, problems, untilProblem, volumes } from "./page.ts";
import { visit } from "./program.ts";

/** Claims that are timed. The tests of the page's speed hold the time against a limit. */
const TIMED = 5;
/** How far a shown duration may be from that in the driver's log. */
const CLOSE_MS = 5;

const { page, wire, errors } = await visit(variable("HOSTLOOP_LIVE_ADMIN"), notePaints);
keepFailures(page);

/** In the page: notes when a frame first shows each name. */
function notePaints(): void {
  const painted = new Map<string, number>();
  Object.assign(globalThis, { painted });
  const note = () => {
    const names = [...document.querySelectorAll("td a")].map((link) => link.textContent ?? "");
    const fresh = names.filter((name) => !painted.has(name));
    // The first frame draws the change, and the second one begins after it is seen.
    if (fresh.length > 0) {
      requestAnimationFrame(() => requestAnimationFrame(() => {
        for (const name of fresh) if (!painted.has(name)) painted.set(name, Date.now());
      }));
    }
  };
  new MutationObserver(note).observe(document, { childList: true, subtree: true, characterData: true });
}

const paintedAt = (name: string) =>
  page.evaluate((of) => (globalThis as unknown as { painted: Map<string, number> }).painted.get(of), name);

test("a claim appears soon after its creation", async (t) => {
  await page.getByText("0 stuck").waitFor();
  const names = Array.from({ length: TIMED }, (_, i) => `timed-${i}`);
  const times: number[] = [];
  for (const name of names) {
    const before = Date.now();
    await create(claim(name));
    const seen = await until(`${name} on the page`, () => paintedAt(name), (at) => at !== undefined);
    times.push(seen! - before);
  }
  t.diagnostic(`from the request to the frame: ${times.join(", ")} ms`);
  for (const name of names) await remove("PersistentVolumeClaim", name);
  await until("their end", () => volumes(page), (rows) => names.every((name) => /Deleted/.test(rows.get(name)?.[1] ?? "")));
  assert.deepEqual(errors, []);
});

test("a claim in use is shown", async () => {
  await create(claim("data"));
  await create(pod("web", "data"));
  await until("data in use", () => volumes(page), (rows) => /published/.test(rows.get("data")?.[1] ?? ""));
  await openLife(page, "data");
  await examine(page, "live-life-in-use");
  await openView(page, "Cluster");
  await page.getByText("hostloop-controller-").first().waitFor();
  await examine(page, "live-cluster");
});

test("a stuck claim is first, with its reason in words", async () => {
  await openView(page, "Volumes");
  await create(claim("huge", "100Ti"));
  await create(pod("waits", "huge"));
  await until(
    "huge is stuck and first", () => cells(page, "Volumes"),
    ([first]) => /^huge\s/.test(first?.[0] ?? "") && /stuck\s+pod waits: .*not have enough free storage/s.test(first?.[1] ?? ""),
  );
  await page.getByText("1 stuck").waitFor();
  await examine(page, "live-stuck");
  await remove("Pod", "waits");
  await remove("PersistentVolumeClaim", "huge");
  await page.getByText("0 stuck").waitFor();
});

/** Shows of each image what is its own, what it shares, and with whom. */
async function sharing(): Promise<Map<string, { own: number; shared: number; others: string }>> {
  const rows = await cells(page, "Images of the node");
  return new Map(rows.map((row) => [row[0]!, { own: mebibytes(row[4]!), shared: mebibytes(row[5]!), others: row[6]! }]));
}

test("a snapshot shares blocks, and a write splits them", async () => {
  const [data, before] = [`${NAMESPACE}/data`, `${NAMESPACE}/before`];
  await inPod("web", "dd if=/dev/urandom of=/data/file bs=1M count=32 && sync");
  await create(snapshot("before", "data"));
  await until("the snapshot", () => get("VolumeSnapshot", "before"), ({ status }) => status?.["readyToUse"] === true);
  await openView(page, "One node");
  const shared = await until("shared blocks", sharing, (images) => (images.get(data)?.shared ?? 0) >= 32 && (images.get(before)?.shared ?? 0) >= 32);
  assert.equal(shared.get(data)!.others, before);
  assert.equal(shared.get(before)!.others, data);
  const fills = () => page.locator(".extents").evaluateAll((bars) => bars.map((bar) =>
    [...bar.querySelectorAll("g > rect:first-child")].map((rect) => rect.getAttribute("fill"))));
  const [ofVolume, ofSnapshot] = await fills();
  const common = ofVolume!.filter((fill) => ofSnapshot!.includes(fill));
  assert.ok(common.length > 0, "shared blocks have one colour");
  await examine(page, "live-shared");

  await inPod("web", "dd if=/dev/urandom of=/data/file bs=1M count=8 conv=notrunc && sync");
  const split = await until("split blocks", sharing, (images) => images.get(data)!.own >= 8 && images.get(before)!.own >= 8);
  const less = shared.get(data)!.shared - split.get(data)!.shared;
  assert.ok(less >= 7.5, `${less} MiB less are shared after a write of 8 MiB`);
  await page.getByText(/^\/dev\/loop\d+ (direct|buffered)/).first().waitFor();
  await examine(page, "live-split");
});

const CALLS = ["CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "DeleteVolume"];

/** The calls about a volume in the driver's log: the name of each, and its milliseconds. */
async function logged(words: readonly string[]): Promise<{ name: string; ms: number }[]> {
  const log = await kubectl("logs", "-n", "hostloop", "daemonset/hostloop", "--all-containers", "--tail=-1");
  const lines = log.split("\n").filter((line) => line.includes("hostloop::call") && words.some((word) => line.includes(word)));
  return lines.map((line) => ({ name: /method="?(\w+)/.exec(line)![1]!, ms: Number(/ ms=([\d.]+)/.exec(line)![1]) }));
}

/** Requires that some of the names, in this order, are among all. */
function assertOrder(all: readonly string[], expected: readonly string[]): void {
  let at = 0;
  for (const name of expected) {
    const next = all.indexOf(name, at);
    assert.notEqual(next, -1, `${name} is missing in its place among ${all.join(", ")}`);
    at = next + 1;
  }
}

const untilStep = (name: string) =>
  until(`${name} on the page`, () => page.locator(".steps li", { hasText: name }).allInnerTexts(), (all) => all.some((text) => /\sOK/.test(text)));

test("each step of a life is in order, with the duration in the driver's log", async (t) => {
  const { metadata } = await get("PersistentVolumeClaim", "data");
  await openView(page, "Volumes");
  await openLife(page, "data");
  await remove("Pod", "web");
  await untilStep("unstage");
  await remove("PersistentVolumeClaim", "data");
  await page.locator(".bar .state", { hasText: "Deleted" }).waitFor();
  await untilStep("delete");
  const ids = await page.locator(".facts div", { hasText: /^ID/ }).locator("dd").allInnerTexts();

  // The driver is installed without attachment.
  const taken = await page.locator(".steps li:not(.none) .name").allInnerTexts();
  assert.deepEqual(taken.slice(0, 7), ["provision", "stage", "publish", "use", "unpublish", "unstage", "delete"]);
  await page.getByRole("button", { name: "Pause" }).click();
  const rows = await allCells(page, "Everything that happened, in order");
  const starts = rows.map((row) => milliseconds(row[0]!).ms);
  const backwards = starts.findIndex((start, i) => start + milliseconds(rows[i]![0]!).rounded < (starts[i - 1] ?? 0));
  assert.equal(backwards, -1, rows.map((row) => row.join(" | ")).join("\n"));
  assertOrder(rows.map((row) => row[2]!), [
    "CreateVolume", "mkfs", "NodeStageVolume", "loop attach", "mount", "NodePublishVolume", "bind mount",
    "NodeUnpublishVolume", "unmount", "NodeUnstageVolume", "unmount", "loop detach", "DeleteVolume", "trash",
  ]);
  // The watch of pods may be slower than the provisioner. Then the claim seems to wait for the user.
  const waits = rows.map((row) => row[2]!.replace("waits for the user", "waits for kube-scheduler"));
  // On a busy machine, even the watch of claims may be. Then nothing is known of the time before.
  const inTime = waits.indexOf("Claim first seen") < waits.indexOf("CreateVolume");
  const first = inTime ? ["waits for kube-scheduler"] : [];
  assertOrder(waits, [...first, "CreateVolume", "waits for kubelet", "NodeStageVolume"]);

  const shown = rows.filter((row) => row[1] === "Calls").map((row) => ({ name: row[2]!, ...milliseconds(row[3]!) }));
  const log = await logged([metadata.uid!, ...ids]);
  const differences: string[] = [];
  for (const name of CALLS) {
    const [drawn, written] = [shown, log].map((calls) => calls.filter((call) => call.name === name)) as [typeof shown, typeof log];
    assert.equal(drawn.length, written.length, `${name}: ${JSON.stringify({ shown, log })}`);
    for (const [i, { ms, rounded }] of drawn.entries()) {
      const difference = Math.abs(ms - written[i]!.ms);
      assert.ok(difference < CLOSE_MS + rounded, `${name}: ${ms} ms on the page, ${written[i]!.ms} ms in the log`);
      differences.push(`${name} ${difference.toFixed(2)} ms`);
    }
  }
  t.diagnostic(`from the driver's log: ${differences.join(", ")}`);
  assert.ok(differences.length >= CALLS.length, differences.join());
  await examine(page, "live-life");
  await page.getByRole("button", { name: "Back to live" }).click();
  assert.deepEqual(errors, []);
});

test("a recording of it is saved and replayed to the same picture", async () => {
  // What is still to come would be in the recording and not in the picture.
  wire.cut();
  await untilProblem(page, /The stream was cut/);
  await settled(page);
  await page.getByRole("button", { name: "Pause" }).click();
  await page.locator(".mode.paused").waitFor();
  const pictures = async (of: typeof page) => {
    await openView(of, "Volumes");
    const all = await allCells(of, "Volumes");
    await openView(of, "One node");
    const node = await of.locator(".chains .inner").evaluate((element) => element.innerHTML);
    await openView(of, "Volumes");
    await openLife(of, "data");
    return { all, node, life: await drawing(of), rows: await allCells(of, "Everything that happened, in order") };
  };
  const seen = await pictures(page);
  const { page: again, errors: others } = await replayed(page, "live.html");
  // Links have the token of the live page.
  const plain = (value: unknown) => JSON.stringify(value).replaceAll(/(&amp;|&|#)token=\w+/g, "");
  // The page draws some time after a click.
  await eventually(async () => {
    const replay = await pictures(again);
    for (const part of ["all", "node", "life", "rows"] as const) assert.equal(plain(replay[part]), plain(seen[part]), part);
  });
  await examine(again, "live-recording");
  assert.deepEqual(others, []);
  wire.mend();
  await untilProblem(page, /The stream was cut/, false);
  assert.deepEqual(await problems(page), []);
});
