import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { STEPS } from "../../src/life/steps.ts";
import { duration } from "../../src/model/text.ts";
import { again, faulty, FULL, hostile, HOSTILE, many, severalStates, sharing, split, wholeLife } from "../generator/stories.ts";
import { TIMING, World } from "../generator/world.ts";
import { violations } from "./axe.ts";
import { cells, eventually, open, openLife, picture, settled } from "./harness.ts";

test("a new claim appears", async () => {
  const world = new World();
  const { page, server, errors } = await open(world.messages);
  await page.getByText("No volumes yet").waitFor();
  const before = world.messages.length;
  world.claim("fresh");
  server.push(...world.messages.slice(before));
  await page.getByRole("link", { name: "fresh" }).waitFor();
  assert.deepEqual(errors, []);
});

test("the stuck claim is first, with its reason in words", async () => {
  const { page, errors } = await open(severalStates().messages);
  await page.getByRole("link", { name: "full" }).waitFor();
  const rows = await cells(page, "Volumes");
  assert.match(rows[0]![0]!, /^full/);
  assert.match(rows[0]![1]!, /stuck/);
  assert.ok(rows[0]![1]!.includes(FULL), rows[0]![1]);
  assert.deepEqual(rows.map((row) => row[0]!.split(/\s/)[0]), ["full", "unused", "before", "data"]);
  await picture(page, "volumes");
  assert.deepEqual(errors, []);
});

test("a volume has the mark of its fault until that is over", async () => {
  const fact = (page: Page) => page.locator(".facts div", { has: page.locator("dt", { hasText: "Fault" }) }).locator("dd");
  const { page, errors } = await open(faulty("active").messages);
  await page.getByRole("link", { name: "data" }).waitFor();
  assert.match((await cells(page, "Volumes"))[0]![1]!, /^↯\s*published, fault gone\s+gone,for=600s, active$/);
  await picture(page, "volumes-faulty");
  assert.deepEqual(await violations(page), []);
  await page.getByRole("navigation").getByRole("link", { name: "One node" }).click();
  await page.getByText("fault gone,for=600s, active").waitFor();
  await page.getByRole("navigation").getByRole("link", { name: "Volumes" }).click();
  await openLife(page, "data");
  assert.equal(await fact(page).innerText(), "gone,for=600s, active");
  assert.deepEqual(errors, []);

  const over = await open(faulty("over").messages);
  await over.page.getByRole("link", { name: "data" }).waitFor();
  assert.match((await cells(over.page, "Volumes"))[0]![1]!, /^●\s*published$/);
  await openLife(over.page, "data");
  assert.equal(await fact(over.page).innerText(), "gone,for=600s, over");
  assert.deepEqual(over.errors, []);
});

/** In the page: notes when its main part begins and ends to be busy. */
function noteBusy(): void {
  const noted: (string | null)[] = [];
  Object.assign(globalThis, { noted });
  const note = (changes: MutationRecord[]) => {
    for (const { target } of changes) noted.push((target as Element).getAttribute("aria-busy"));
  };
  new MutationObserver(note).observe(document, { subtree: true, attributeFilter: ["aria-busy"] });
}

test("the page is busy until it shows a long history", async () => {
  const { messages } = many(400);
  const { page, errors } = await open(messages, {}, "", noteBusy);
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Emulation.setCPUThrottlingRate", { rate: 8 });
  await page.reload();
  await settled(page, messages.length);
  const noted = await page.evaluate(() => (globalThis as unknown as { noted: (string | null)[] }).noted);
  assert.deepEqual([noted.includes("true"), noted.at(-1)], [true, null]);
  assert.match(await page.locator(".sum").innerText(), /^400 volumes/);
  assert.deepEqual(errors, []);
});

test("filters leave what they name, and stay in the address", async () => {
  const { page } = await open(severalStates().messages);
  await page.getByRole("link", { name: "full" }).waitFor();
  await page.getByLabel("State").selectOption("stuck");
  await eventually(async () => assert.equal((await cells(page, "Volumes")).length, 1));
  await page.getByLabel("State").selectOption("");
  await page.getByLabel("Text").fill("unused");
  await page.getByText("1 shown").waitFor();
  await page.waitForURL(/text=unused/);
  await page.reload();
  await page.getByText("1 shown").waitFor();
  await page.getByLabel("Text").fill("nothing has this name");
  await page.getByText("No volume passes the filters.").waitFor();
});

test("the timeline has each step in order, with the duration of its call", async () => {
  const { page, errors } = await open(wholeLife().messages);
  await openLife(page, "data");
  const names = await page.locator(".steps .name").allInnerTexts();
  assert.deepEqual(names, STEPS.map((step) => step.name));
  const times = await page.locator(".steps .time").allInnerTexts();
  const expected = Object.values(TIMING).map(duration);
  assert.deepEqual(times.filter((_, i) => i !== 4), expected);
  await page.getByRole("region", { name: "Everything that happened, in order" }).evaluate((e) => e.scrollTo(0, 0));
  const rows = await cells(page, "Everything that happened, in order");
  const seconds = rows.map(([after]) => toMicroseconds(after!));
  assert.deepEqual(seconds, seconds.toSorted((a, b) => a - b));
  assert.ok(rows.some((row) => row[2]!.startsWith("waits for kube-scheduler")), JSON.stringify(rows.map((row) => row[2])));
  await picture(page, "life");
  assert.deepEqual(errors, []);
});

function toMicroseconds(text: string): number {
  const units: Record<string, number> = { "µs": 1, ms: 1e3, s: 1e6, min: 60e6, h: 3600e6, d: 86_400e6 };
  let sum = 0;
  for (const [, n, unit] of text.matchAll(/([\d.]+) (µs|ms|s|min|h|d)/g)) sum += Number(n) * units[unit!]!;
  return sum;
}

test("all lanes are drawn, and the details have what was asked and answered", async () => {
  const { page } = await open(sharing().messages);
  await openLife(page, "data");
  const groups = await page.locator(".plot text.group").allTextContents();
  assert.deepEqual(groups, ["Steps and waits", "Objects", "Controllers", "CSI calls", "Kernel and disk"]);
  await page.getByRole("button", { name: "CreateVolume", exact: true }).first().scrollIntoViewIfNeeded();
  await page.getByRole("button", { name: "CreateVolume", exact: true }).first().click();
  const details = page.locator(".details");
  await eventually(async () => assert.match(await details.innerText(), /capacity_bytes/));
  await page.getByRole("button", { name: "Volume changed" }).first().click();
  await eventually(async () => assert.match(await details.innerText(), /status\.phase[\s\S]*"Available"[\s\S]*"Bound"/));
});

test("the timeline zooms from days to milliseconds", async () => {
  const world = new World();
  const claim = world.claim("data");
  const pod = world.pod("web", "data");
  world.provision(claim);
  world.start(pod, claim);
  world.wait(3 * 86_400e6).stop(pod, claim);
  const { page } = await open(world.messages);
  await openLife(page, "data");
  const span = page.locator(".span");
  await eventually(async () => assert.match(await span.innerText(), /^3 d/));
  await page.getByLabel("shorten long times").uncheck();
  await page.locator(".steps").getByRole("button", { name: "stage" }).first().click();
  await page.getByRole("button", { name: "Chosen" }).click();
  await eventually(async () => assert.match(await span.innerText(), /^79.3 ms/));
  await page.locator(".plot text", { hasText: /^mount 7.50 ms/ }).first().waitFor();
  await picture(page, "life-zoomed");
});

test("blocks are shared after a snapshot and split by a write", async () => {
  const world = sharing();
  const { page, server, errors } = await open(world.messages, {}, "&view=node&node=node-1");
  const shared = async () => (await cells(page, "Images of the node")).map((row) => [row[0], row[4], row[5], row[6]]);
  await page.getByRole("link", { name: "demo/data" }).first().waitFor();
  assert.deepEqual(await shared(), [
    ["demo/data", "0 B", "40 MiB", "demo/before"],
    ["demo/before", "0 B", "40 MiB", "demo/data"],
  ]);
  const fills = () => page.locator(".extents").evaluateAll((bars) => bars.map((bar) =>
    [...bar.querySelectorAll("g > rect:first-child")].map((rect) => rect.getAttribute("fill"))));
  const [volume, snapshot] = await fills();
  assert.deepEqual(volume, snapshot, "shared blocks have one colour");
  await picture(page, "node-shared");
  const before = world.messages.length;
  split(world);
  server.push(...world.messages.slice(before));
  // The extents of the two images come one after the other.
  await eventually(async () => assert.deepEqual(await shared(), [
    ["demo/data", "8 MiB", "32 MiB", "demo/before"],
    ["demo/before", "8 MiB", "32 MiB", "demo/data"],
  ]));
  await page.getByText("8 MiB of its own").first().waitFor();
  const [, own] = await fills();
  assert.equal(new Set(own).size, 2, "what the write split has a colour of its own");
  await page.getByText("/dev/loop0 direct").waitFor();
  await page.locator(".links").getByText("demo/web").waitFor();
  await picture(page, "node-split");
  assert.deepEqual(errors, []);
});

test("a snapshot shows what has changed since the one before it", async () => {
  const world = again(split(sharing()));
  const { page, errors } = await open(world.messages, {}, "&view=node&node=node-1");
  const changed = async () => (await cells(page, "Images of the node")).map((row) => [row[0], row.at(-1)]);
  await page.getByText("8 MiB changed since demo/before").first().waitFor();
  assert.deepEqual(await changed(), [["demo/before", "–"], ["after", "8 MiB changed since demo/before"]]);
  const marks = page.locator(".extents").nth(1).locator(".changed");
  assert.equal(await marks.count(), 1);
  const [bar, mark] = await Promise.all([page.locator(".extents").nth(1).boundingBox(), marks.boundingBox()]);
  // From 16 to 24 of 1024 MiB.
  assert.ok(Math.abs((mark!.x - bar!.x) / bar!.width - 16 / 1024) < 0.005, JSON.stringify([bar, mark]));
  assert.equal(await page.locator(".extents").first().locator(".changed").count(), 0);
  assert.deepEqual(errors, []);
});

test("the cluster has its nodes, its leader and its charts", async () => {
  const { page, errors } = await open(severalStates().messages, {}, "&view=cluster");
  await page.getByText("hostloop-controller-7d9f").waitFor();
  await page.getByText("goes to node-1, which has room for 49 GiB").waitFor();
  assert.deepEqual((await cells(page, "Leases acquired and lost")).map((row) => row.slice(1, 3)), [["controller", "acquired"]]);
  assert.equal(await page.locator(".chart").count(), 3);
  await page.getByText("3 per second").first().waitFor();
  await picture(page, "cluster");
  assert.deepEqual(errors, []);
});

test("everything works from the keyboard", async () => {
  const { page } = await open(severalStates().messages);
  await page.getByRole("link", { name: "full" }).focus();
  await page.keyboard.press("End");
  const focused = (name: string) => eventually(async () =>
    assert.equal(await page.evaluate(() => document.activeElement?.textContent ?? ""), name));
  await focused("data");
  await page.keyboard.press("ArrowUp");
  await focused("before");
  await page.keyboard.press("ArrowDown");
  await focused("data");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "data" }).waitFor();
  await page.locator(".plot svg").first().waitFor();
  // A volume in use grows older, and with it the time that is visible.
  await page.getByRole("button", { name: "Pause" }).press("Enter");
  await page.locator(".mode.paused").waitFor();
  await page.getByRole("application").focus();
  const title = () => page.locator(".details h2").innerText();
  await page.keyboard.press("ArrowRight");
  await eventually(async () => assert.notEqual(await title(), "Details"));
  const first = await title();
  await page.keyboard.press("ArrowRight");
  await eventually(async () => assert.notEqual(await title(), first));
  await page.keyboard.press("ArrowDown");
  const span = () => page.locator(".span").innerText();
  const whole = await span();
  await page.keyboard.press("+");
  await eventually(async () => assert.notEqual(await span(), whole));
  await page.keyboard.press("0");
  await eventually(async () => assert.equal(await span(), whole));
  await page.keyboard.press("Tab");
  assert.notEqual(await page.evaluate(() => document.activeElement?.className), "plot");
});

test("hostile names and errors are only text", async () => {
  const { page, errors } = await open(hostile().messages);
  const name = page.getByRole("link", { name: HOSTILE.html });
  await name.first().waitFor();
  const check = async () => {
    assert.equal(await page.evaluate(() => (globalThis as { owned?: unknown }).owned), undefined);
    assert.equal(await page.locator("img").count(), 0);
  };
  await check();
  await picture(page, "hostile");
  await name.first().click();
  await page.getByRole("heading", { level: 1, name: HOSTILE.html }).waitFor();
  await check();
  for (const view of ["One node", "Cluster"]) {
    await page.getByRole("navigation").getByRole("link", { name: view }).click();
    await page.getByRole("heading", { level: 1 }).waitFor();
    await check();
  }
  assert.ok((await page.locator("body").innerText()).length < 40_000);
  assert.deepEqual(errors, []);
});

test("a cut stream is a sentence, and the page goes on", async () => {
  const world = new World();
  world.claim("one");
  const { page, server } = await open(world.messages);
  await page.getByRole("link", { name: "one", exact: true }).waitFor();
  const before = world.messages.length;
  world.claim("two");
  server.cut();
  await page.getByText("The stream was cut.").waitFor();
  await page.getByRole("link", { name: "one", exact: true }).waitFor();
  server.push(...world.messages.slice(before));
  server.mend();
  await page.getByRole("link", { name: "two", exact: true }).waitFor();
  await page.getByText("The stream was cut.").waitFor({ state: "detached" });
  await eventually(async () => assert.equal((await cells(page, "Volumes")).length, 2));
});

test("missing rights, lost events and another version are sentences", async () => {
  const world = new World({ stream: "hostloop.ui/v9" });
  world.claim("one");
  world.messages.push(
    { type: "problem", about: "Lease", text: "You may not list leases: the leader is not shown." },
    { type: "gap", node: "node-1", process: "node", lost: 12 },
    { type: "surprise" },
  );
  const { page, server } = await open(world.messages);
  const problems = page.getByRole("status", { name: "Problems" });
  for (const sentence of [/format hostloop\.ui\/v9/, /You may not list leases/, /overwrote 12 events/, /1 message of a kind/]) {
    await problems.getByText(sentence).waitFor();
  }
  await page.getByRole("link", { name: "one", exact: true }).waitFor();
  server.push({ type: "solved", about: "Lease" });
  await problems.getByText("You may not list leases").waitFor({ state: "detached" });
});

test("more than five problems are counted, and shown on demand", async () => {
  const world = new World();
  world.claim("one");
  const rights = ["nodes", "pods", "leases", "events", "volumes", "classes", "pods/exec"];
  world.messages.push(...rights.map((right) => ({ type: "problem", about: right, text: `You may not list ${right}.` })));
  const { page } = await open(world.messages);
  const last = page.getByRole("status", { name: "Problems" }).getByText("You may not list pods/exec.");
  await page.getByText("You may not list volumes.").waitFor();
  assert.equal(await last.isVisible(), false);
  await page.getByText("and 2 more").click();
  await last.waitFor();
  await page.getByRole("link", { name: "one", exact: true }).waitFor();
  assert.deepEqual(await violations(page), []);
  await picture(page, "problems");
});
