import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { HOSTILE, hostile, severalStates, wholeLife } from "../generator/stories.ts";
import { cells, eventually, open, openLife, picture } from "./harness.ts";
import { drawing, folder, openFile, replayed } from "./replay.ts";

test("a recording is saved and replayed to the same picture", async () => {
  const { page } = await open(wholeLife().messages);
  await page.getByRole("button", { name: "Pause" }).click();
  // Ages stand still from here on.
  await page.locator(".mode.paused").waitFor();
  const volumes = await cells(page, "Volumes");
  await openLife(page, "data");
  const saved = { drawing: await drawing(page), rows: await cells(page, "Everything that happened, in order") };
  const { page: again, errors } = await replayed(page, "whole.html");
  assert.deepEqual(await cells(again, "Volumes"), volumes);
  await openLife(again, "data");
  await eventually(async () => assert.equal(await drawing(again), saved.drawing));
  await eventually(async () => assert.deepEqual(await cells(again, "Everything that happened, in order"), saved.rows));
  await picture(again, "recording");
  assert.deepEqual(errors, []);
});

test("a recording is scrubbed and played", async () => {
  const { page } = await open(wholeLife().messages);
  const scrub = page.getByLabel("Time that is shown");
  await scrub.fill("100");
  await page.getByText("waits for its first pod").waitFor();
  await scrub.fill("20000");
  await page.locator(".state", { hasText: "published" }).waitFor();
  await page.getByLabel("Speed").selectOption("60");
  await page.getByRole("button", { name: "Play" }).click();
  await page.locator(".state", { hasText: "Deleted" }).waitFor();
  await page.getByRole("button", { name: "Back to live" }).click();
  await page.locator(".mode.live").waitFor();
});

test("a recording of hostile texts is only text", async () => {
  const { page } = await open(hostile().messages);
  await page.getByRole("link", { name: HOSTILE.html }).first().waitFor();
  const { page: again, errors } = await replayed(page, "hostile.html");
  await again.getByRole("link", { name: HOSTILE.html }).first().waitFor();
  assert.equal(await again.evaluate(() => (globalThis as { owned?: unknown }).owned), undefined);
  assert.deepEqual(errors, []);
});

test("a recording of another version or a damaged one is a sentence", async () => {
  const { page } = await open(severalStates().messages);
  await page.getByRole("link", { name: "full" }).waitFor();
  const { file } = await replayed(page, "several.html");
  const html = await readFile(file, "utf8");
  const later = join(folder, "later.html");
  // Only the recording itself: the program has the name of the format, too.
  await writeFile(later, html.replace('id="recording">{"recording":"hostloop.recording/v1"', 'id="recording">{"recording":"hostloop.recording/v7"'));
  const { page: other } = await openFile(later);
  await other.getByText("The recording has the format hostloop.recording/v7").waitFor();
  await eventually(async () => assert.equal((await cells(other, "Volumes")).length, 4));
  const damaged = join(folder, "damaged.html");
  await writeFile(damaged, html.replace(/id="recording">.{1000}/, 'id="recording">'));
  const { page: broken } = await openFile(damaged);
  await broken.getByText("The recording is damaged").waitFor();
});

const { RECORDING = "" } = process.env;

test("the given recording is shown in each view", { skip: RECORDING === "" && "no recording was given" }, async () => {
  let file = RECORDING;
  if (!RECORDING.endsWith(".html")) {
    const json = (await readFile(RECORDING, "utf8")).replaceAll("<", "\\u003c");
    file = join(folder, "given.html");
    const data = `<script type="application/json" id="recording">${json}</script>`;
    await writeFile(file, (await readFile("dist/index.html", "utf8")).replace("<!--recording-->", () => data));
  }
  const { page, errors } = await openFile(file);
  const link = page.locator("td a").first();
  await link.waitFor();
  await picture(page, "given-volumes");
  await link.click();
  await page.locator(".plot svg").first().waitFor();
  await picture(page, "given-life");
  for (const view of ["One node", "Cluster"]) {
    await page.getByRole("navigation").getByRole("link", { name: view }).click();
    await page.getByRole("heading", { level: 1 }).waitFor();
    await picture(page, `given-${view.split(" ").at(-1)!.toLowerCase()}`);
  }
  assert.deepEqual(errors, []);
});
