/** What a person sees on the page of a live cluster. */

import assert from "node:assert/strict";
import { afterEach } from "node:test";
import type { Page } from "playwright-core";
import { violations } from "../browser/axe.ts";
import { cells, picture } from "../browser/harness.ts";
import { until } from "./cluster.ts";

/** Keeps a picture of the page after each test that fails. */
export function keepFailures(page: Page): void {
  afterEach(async (context) => {
    // The types of this version of Node.js do not have it yet.
    const { name, passed } = context as unknown as { name: string; passed?: boolean };
    if (passed === false) await picture(page, `live-failed-${name.replaceAll(/\W+/g, "-")}`);
  });
}

/** Opens a view by the navigation. */
export async function openView(page: Page, name: string): Promise<void> {
  await page.getByRole("navigation").getByRole("link", { name }).click();
  await page.getByRole("heading", { level: 1 }).waitFor();
}

/** Axe finds nothing in what is shown. Keeps a picture. */
export async function examine(page: Page, name: string): Promise<void> {
  await picture(page, name);
  assert.deepEqual(await violations(page), [], name);
}

/** The sentences about problems, also those that are folded. */
export const problems = (page: Page) => page.locator(".problems li").allTextContents();

/** Waits until one of the sentences about problems matches, or none does. */
export function untilProblem(page: Page, sentence: RegExp, there = true): Promise<string[]> {
  const what = `${there ? "a sentence" : "no sentence"} like ${sentence}`;
  return until(what, () => problems(page), (all) => all.some((text) => sentence.test(text)) === there);
}

/** The rows of the table of volumes by their names. */
export async function volumes(page: Page): Promise<Map<string, string[]>> {
  const rows = await cells(page, "Volumes");
  return new Map(rows.map((row) => [row[0]!.split(/\s/)[0]!, row]));
}

/** All rows of a long table, of which the page draws only those in sight. */
export async function allCells(page: Page, caption: string): Promise<string[][]> {
  const table = page.locator(".table", { has: page.locator("caption", { hasText: caption }) });
  const found = new Map<number, string[]>();
  for (let top = 0, height = Number.POSITIVE_INFINITY; top < height; top += 300) {
    height = await table.evaluate(async (box, to) => {
      box.scrollTo(0, to);
      await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
      return box.scrollHeight;
    }, top);
    const rows = await table.locator("tbody tr[data-row]").evaluateAll((all) => all.map((row) => ({
      at: Number(row.getAttribute("data-row")),
      texts: [...row.querySelectorAll("td")].map((cell) => cell.innerText.trim()),
    })));
    for (const { at, texts } of rows) found.set(at, texts);
  }
  return [...found].sort(([a], [b]) => a - b).map(([, texts]) => texts);
}

const TIMES: Readonly<Record<string, number>> = { "µs": 1e-3, ms: 1, s: 1e3, min: 60e3 };

/** Milliseconds of a shown duration, and how far its three figures may be from the real one. */
export function milliseconds(text: string): { ms: number; rounded: number } {
  let ms = 0;
  let rounded = 0;
  for (const [, number, unit] of text.matchAll(/([\d.]+) (µs|ms|s|min)/g)) {
    const value = Number(number);
    ms += value * TIMES[unit!]!;
    rounded = (value < 10 ? 0.005 : value < 100 ? 0.05 : 0.5) * TIMES[unit!]!;
  }
  return { ms, rounded };
}

const SIZES: Readonly<Record<string, number>> = { B: 2 ** -20, KiB: 2 ** -10, MiB: 1, GiB: 1024 };

/** MiB of a shown size; NaN if there is none. */
export function mebibytes(text: string): number {
  const match = /^([\d.]+) (B|KiB|MiB|GiB)$/.exec(text);
  return match ? Number(match[1]) * SIZES[match[2]!]! : Number.NaN;
}
