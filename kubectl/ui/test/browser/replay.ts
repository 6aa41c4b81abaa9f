/** Recordings that a page saves, opened as files. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { after } from "node:test";
import type { Page } from "playwright-core";
import { context, settled, watch } from "./harness.ts";

/** Where the files are, until the end of the test file. */
export const folder = await mkdtemp(join(tmpdir(), "hostloop-recording-"));
after(() => rm(folder, { recursive: true }));

/** Saves what a page has seen, opens the file without a network, and waits until it shows all. */
export async function replayed(page: Page, name: string): Promise<{ page: Page; file: string; errors: string[] }> {
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save recording" }).click()]);
  const path = join(folder, name);
  await file.saveAs(path);
  const opened = await openFile(path);
  await settled(opened.page);
  return { ...opened, file: path };
}

/** Opens a file without a network. */
export async function openFile(path: string): Promise<{ page: Page; errors: string[] }> {
  const page = await (await context({ offline: true })).newPage();
  const errors = watch(page);
  page.on("request", (request) => {
    if (!request.url().startsWith("file:")) errors.push(`request to ${request.url()}`);
  });
  await page.goto(pathToFileURL(path).href);
  return { page, errors };
}

/** The picture of a timeline. */
export const drawing = (page: Page) => page.locator(".plot svg").first().evaluate((svg) => svg.outerHTML);
