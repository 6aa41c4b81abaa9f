/** Recordings that a page saves, opened as files. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { after } from "node:test";
import type { Page } from "playwright-core";
import { launch, PATIENCE_MS, watch } from "./harness.ts";

/** Where the files are, until the end of the test file. */
export const folder = await mkdtemp(join(tmpdir(), "hostloop-recording-"));
after(() => rm(folder, { recursive: true }));

/** Saves what a page has seen, and opens the file without a network. */
export async function replayed(page: Page, name: string): Promise<{ page: Page; file: string; errors: string[] }> {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save recording" }).click()]);
  const path = join(folder, name);
  await file.saveAs(path);
  return { ...(await openFile(path)), file: path };
}

/** Opens a file without a network. */
export async function openFile(path: string): Promise<{ page: Page; errors: string[] }> {
  const context = await (await launch()).newContext({ viewport: { width: 1280, height: 800 }, offline: true });
  context.setDefaultTimeout(PATIENCE_MS);
  after(() => context.close());
  const page = await context.newPage();
  const errors = watch(page);
  page.on("request", (request) => {
    if (!request.url().startsWith("file:")) errors.push(`request to ${request.url()}`);
  });
  await page.goto(pathToFileURL(path).href);
  return { page, errors };
}

/** The picture of a timeline. */
export const drawing = (page: Page) => page.locator(".plot svg").first().evaluate((svg) => svg.outerHTML);
