import assert from "node:assert/strict";
import { test } from "node:test";
import type { Page } from "playwright-core";
import { many } from "../generator/stories.ts";
import { World } from "../generator/world.ts";
import { open, picture } from "../browser/harness.ts";

const CLAIMS = 1000;
const EVENTS = 10_000;
const FIRST_PAINT_MS = 1000;
const FRAMES = 60;
/** Frames of a noisy machine may come a little late. */
const TOLERANCE = 0.95;
const SECONDS = 8;
const RATE = 50;

/** A cluster with many claims and many events. */
function crowd(): World {
  const world = many(CLAIMS);
  const events = () => world.messages.filter((message) => message["type"] === "event").length;
  for (let missing = EVENTS - events(); missing > 0; missing--) {
    world.wait(100).call("node-1", "NodeGetVolumeStats", 90, `vol-${missing % CLAIMS}`, { request: { volume_id: `vol-${missing % CLAIMS}` } });
  }
  assert.ok(events() >= EVENTS);
  return world;
}

/** Frames a second in a time, and the longest one. */
function frames(page: Page, ms: number): Promise<{ rate: number; longest: number; late: number }> {
  return page.evaluate((lasts) => new Promise<{ rate: number; longest: number; late: number }>((resolve) => {
    const times: number[] = [];
    const frame = (t: number) => {
      times.push(t);
      if (t - times[0]! < lasts) {
        requestAnimationFrame(frame);
        return;
      }
      const gaps = times.slice(1).map((time, i) => time - times[i]!);
      resolve({
        rate: (gaps.length / (times.at(-1)! - times[0]!)) * 1000,
        longest: Math.max(...gaps),
        late: gaps.filter((gap) => gap > 25).length,
      });
    };
    requestAnimationFrame(frame);
  }), ms);
}

/** Runs in the page: marks the frames with the first row and with all volumes. */
function watchRows(): void {
  const frame = () => {
    const first = performance.getEntriesByName("first row").length > 0;
    if (!first && document.querySelector("td a")) performance.mark("first row");
    if (document.querySelector(".sum")?.textContent?.includes("1,000 volumes")) performance.mark("all rows");
    else requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}

const world = crowd();
const base = world.messages.slice();
/** What the claims of a run add. */
const more = many(RATE * SECONDS, world, CLAIMS).messages.slice(base.length);

test("1,000 claims and 10,000 events: first paint within a second", async () => {
  const { page, errors } = await open(base, {}, "", watchRows);
  await page.getByText("1,000 volumes").waitFor();
  const { paint, rows, complete } = await page.evaluate(() => ({
    paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Number.POSITIVE_INFINITY,
    rows: performance.getEntriesByName("first row")[0]?.startTime ?? Number.POSITIVE_INFINITY,
    complete: performance.getEntriesByName("all rows")[0]?.startTime ?? Number.POSITIVE_INFINITY,
  }));
  console.log(`# first paint after ${paint.toFixed(0)} ms, first rows after ${rows.toFixed(0)} ms, all of them after ${complete.toFixed(0)} ms`);
  await picture(page, "crowd");
  assert.ok(paint < FIRST_PAINT_MS, `${paint} ms`);
  assert.deepEqual(errors, []);
});

test("a claim appears within a second of its creation", async () => {
  const world = new World();
  const { page, server } = await open(world.messages);
  await page.getByText("No volumes yet").waitFor();
  const before = world.messages.length;
  world.claim("fresh");
  const start = Date.now();
  server.push(...world.messages.slice(before));
  await page.getByRole("link", { name: "fresh" }).waitFor();
  const took = Date.now() - start;
  console.log(`# the claim appeared after ${took} ms`);
  assert.ok(took < 1000, `${took} ms`);
});

for (const view of ["volumes", "life"] as const) {
  test(`60 frames a second in ${view} while 50 claims a second are bound`, async () => {
    const { page, server } = await open(base);
    await page.getByText("1,000 volumes").waitFor();
    if (view === "life") await page.locator("td a").first().click();
    const batches = SECONDS * 20;
    let sent = 0;
    const timer = setInterval(() => {
      if (sent === batches) return;
      const size = Math.ceil(more.length / batches);
      server.push(...more.slice(sent * size, (sent + 1) * size));
      sent += 1;
    }, 50);
    const measured = await frames(page, SECONDS * 1000);
    while (sent < batches) await page.waitForTimeout(50);
    clearInterval(timer);
    console.log(`# ${view}: ${measured.rate.toFixed(1)} frames a second, longest ${measured.longest.toFixed(0)} ms, ${measured.late} late`);
    if (view === "volumes") await page.getByText("1,400 volumes").waitFor();
    assert.ok(measured.rate >= FRAMES * TOLERANCE, JSON.stringify(measured));
  });
}

test("scrolling the table of 1,000 volumes keeps its frames", async () => {
  const { page } = await open(base);
  await page.getByText("1,000 volumes").waitFor();
  await page.evaluate(() => {
    const table = document.querySelector(".table")!;
    const scroll = () => {
      table.scrollTop = (table.scrollTop + 137) % (table.scrollHeight - table.clientHeight);
      requestAnimationFrame(scroll);
    };
    requestAnimationFrame(scroll);
  });
  const measured = await frames(page, 3000);
  console.log(`# scrolling: ${measured.rate.toFixed(1)} frames a second, longest ${measured.longest.toFixed(0)} ms`);
  assert.ok(measured.rate >= FRAMES * TOLERANCE, JSON.stringify(measured));
  assert.ok((await page.locator("tbody tr").count()) < 60);
});
