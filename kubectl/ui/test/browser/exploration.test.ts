import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { escapeJson, recordingJson } from "../../src/recording/document.ts";
import { exploration, explorationReport, HOSTILE } from "../generator/stories.ts";
import { violations } from "./axe.ts";
import { cells, eventually, picture, settled } from "./harness.ts";
import { folder, openFile } from "./replay.ts";

/** Opens a report as `kubectl hostloop ui --replay` does. */
async function openReport(name: string, report = explorationReport()) {
  const file = join(folder, name);
  const json = escapeJson(recordingJson("0.2.0", exploration(report).messages));
  const data = `<script type="application/json" id="recording">${json}</script>`;
  await writeFile(file, (await readFile("dist/index.html", "utf8")).replace("<!--recording-->", () => data));
  const opened = await openFile(file);
  await settled(opened.page, 2);
  return opened;
}

test("the report of an exploration shows its cuts, and how to get one again", async () => {
  const { page, errors } = await openReport("exploration.html");
  await page.getByRole("heading", { level: 1, name: "Exploration of demo/data" }).waitFor();
  assert.deepEqual(await page.getByRole("navigation").getByRole("link").allInnerTexts(), ["Exploration"]);
  assert.match(await page.locator(".sum").innerText(), /^23 cuts checked, 1 failed, 1 unknown$/);
  const rows = await cells(page, "All cuts");
  assert.equal(rows.length, 24);
  assert.deepEqual(rows[16]!.slice(0, 2), ["17", "1.60 s"]);
  assert.match(rows[16]![2]!, /failed$/);
  assert.match(rows[23]![2]!, /not checked$/);
  assert.deepEqual(rows[16]!.slice(3), [
    "64 KiB", "explore-data-01234567-0017", "BackoffLimitExceeded: Job has reached the specified backoff limit",
  ]);

  await page.getByRole("button", { name: "17", exact: true }).click();
  const details = page.locator(".details");
  await details.getByText("120 records were acknowledged, and 87 are there").waitFor();
  await details.getByText('"name": "explore-data-01234567-0017"').waitFor();
  assert.deepEqual(await violations(page), []);
  await picture(page, "exploration");
  await page.getByRole("button", { name: "3", exact: true }).click();
  await details.getByText("kubectl hostloop explore data -n demo --cuts 24 --every 100ms --seed 42 --check FILE").waitFor();

  await page.getByRole("application").focus();
  await page.keyboard.press("ArrowRight");
  await eventually(async () => assert.match(await details.innerText(), /Cut 4\n/));
  await page.locator(".plot path.tone-bad").click();
  await details.getByRole("heading", { name: "Cut 17" }).waitFor();
  assert.deepEqual(errors, []);
});

test("the report of an exploration fits a phone", async () => {
  const { page } = await openReport("phone.html");
  await page.setViewportSize({ width: 360, height: 740 });
  await eventually(async () => {
    const width = await page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.getElementById("main")!.scrollWidth));
    assert.ok(width <= 360, `${width} pixels`);
  });
  assert.deepEqual(await violations(page), []);
});

test("hostile texts of a report are only text", async () => {
  const report = explorationReport();
  const [cut] = report["cuts"] as { why: string; log: string[]; snapshot: string }[];
  Object.assign(cut!, { why: HOSTILE.html, log: [HOSTILE.close, HOSTILE.bidi], snapshot: HOSTILE.long });
  const { page, errors } = await openReport("hostile-report.html", { ...report, claim: HOSTILE.html, problems: [HOSTILE.close] });
  await page.getByRole("button", { name: "17", exact: true }).click();
  await page.locator(".details").getByText("⟨U+202E⟩").waitFor();
  assert.equal(await page.evaluate(() => (globalThis as { owned?: unknown }).owned), undefined);
  assert.deepEqual(errors, []);
});
