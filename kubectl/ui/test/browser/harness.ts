/** A browser, and a server that speaks as `kubectl hostloop ui` does. */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer, type ServerResponse } from "node:http";
import { join } from "node:path";
import { after, afterEach } from "node:test";
import { setTimeout } from "node:timers/promises";
import { chromium, type Browser, type BrowserContext, type BrowserContextOptions, type Page } from "playwright-core";
import { parse } from "../../src/model/message.ts";

const PAGE = "dist/index.html";
const TOKEN = "t0ken";
const SESSION = "s3ssion";
/** Messages that are sent at once. */
const PART = 200;
/** How long a test waits for the page. */
export const PATIENCE_MS = 300_000;
const { SCREENSHOTS = "", PICTURES = "" } = process.env;
/** The pictures that documents show. Beside each is what the page says on it. */
const DOCUMENTED = "../../docs/pictures";
const OUTDATED = "docs/pictures shows another page: run ./scripts/ui --test --pictures, and look at what git shows";

let browser: Promise<Browser> | undefined;

// At the end of the file: a test that launches the browser does not own it.
after(async () => (await browser)?.close());

/** The browser of this test file. */
function launch(): Promise<Browser> {
  if (!browser) {
    // Root has no sandbox in chromium, and tests often run as root.
    const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
    browser = chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args });
  }
  return browser;
}

/** What the running test has to end. */
const endings: (() => unknown)[] = [];

// A page that stays open goes on drawing, and slows down the tests after it.
afterEach(async () => {
  for (const end of endings.splice(0)) await end();
});

/** A profile of the browser, which its caller ends. */
export async function profile(options: BrowserContextOptions = {}): Promise<BrowserContext> {
  return (await launch()).newContext({ viewport: { width: 1280, height: 800 }, timezoneId: "UTC", ...options });
}

/** A profile of the browser for one test, which ends with it. */
export async function context(options: BrowserContextOptions = {}): Promise<BrowserContext> {
  const made = await profile(options);
  endings.push(() => made.close());
  made.setDefaultTimeout(PATIENCE_MS);
  return made;
}

export class Server {
  url = "";
  private token = TOKEN;
  private messages: unknown[];
  private broken = false;
  private streams = new Set<ServerResponse>();
  private readonly server = createServer((request, response) => {
    const url = new URL(request.url ?? "/", "http://localhost");
    if (url.pathname === "/") {
      response.setHeader("content-type", "text/html; charset=utf-8");
      readFile(PAGE).then((html) => response.end(html), () => response.destroy());
    } else if (url.pathname === "/session" && request.method === "POST") {
      // Like the program, it takes the token once.
      const isFirst = request.headers["x-hostloop-token"] === this.token;
      this.token = "";
      response.writeHead(isFirst ? 200 : 403).end(isFirst ? JSON.stringify({ session: SESSION, recording: false }) : "This address was used before.");
    } else if (url.searchParams.get("session") !== SESSION) {
      response.writeHead(401).end();
    } else if (url.pathname === "/stream" && this.broken) {
      response.destroy();
    } else if (url.pathname === "/stream") {
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      response.on("close", () => this.streams.delete(response));
      void this.replay(response);
    } else {
      response.writeHead(404).end();
    }
  });

  private constructor(messages: readonly unknown[]) {
    this.messages = [...messages];
  }

  static async start(messages: readonly unknown[]): Promise<Server> {
    const server = new Server(messages);
    await new Promise<void>((resolve) => server.server.listen(0, "127.0.0.1", resolve));
    const address = server.server.address();
    if (typeof address !== "object" || address === null) throw new Error("the server has no port");
    server.url = `http://127.0.0.1:${address.port}/#token=${TOKEN}`;
    return server;
  }

  /** Sends what was sent before, in parts as they would come over a tunnel. */
  private async replay(response: ServerResponse): Promise<void> {
    const messages = this.messages.slice();
    this.send(response, []);
    for (let i = 0; i < messages.length; i += PART) {
      this.send(response, messages.slice(i, i + PART));
      await new Promise((resolve) => setImmediate(resolve));
    }
    this.streams.add(response);
    this.send(response, this.messages.slice(messages.length));
  }

  private send(response: ServerResponse, messages: readonly unknown[]): void {
    response.write(messages.map((message) => `data: ${JSON.stringify(message)}\n\n`).join("") || ":\n\n");
  }

  /** Sends more messages to the open pages, and to those that open later. */
  push(...messages: unknown[]): void {
    this.messages.push(...messages);
    for (const stream of this.streams) this.send(stream, messages);
  }

  /** Breaks the streams that are open, and refuses others until it is mended. */
  cut(): void {
    this.broken = true;
    for (const stream of this.streams) stream.destroy();
  }

  mend(): void {
    this.broken = false;
  }

  stop(): void {
    this.cut();
    this.server.close();
    this.server.closeAllConnections();
  }
}

export interface Opened {
  page: Page;
  server: Server;
  /** Errors of the page, and what its policy blocked. */
  errors: string[];
}

/**
 * Opens the page on a stream of messages, and waits until it shows them all. `at` is a part of the
 * address, `init` runs before the page.
 */
export async function open(
  messages: readonly unknown[], options: BrowserContextOptions = {}, at = "", init: () => void = () => {},
): Promise<Opened> {
  const page = await (await context(options)).newPage();
  const server = await Server.start(messages);
  endings.push(() => server.stop());
  await page.addInitScript(init);
  const errors = watch(page);
  await page.goto(server.url + at);
  await settled(page, messages.filter((message) => parse(message)).length);
  return { page, server, errors };
}

/** Waits until the page shows all that it was sent. Without a number of messages, it has at least one. */
export async function settled(page: Page, messages?: number): Promise<void> {
  const amount = messages === undefined ? /^[1-9]/ : new RegExp(`^${messages.toLocaleString("en")} messages,`);
  await page.locator("footer .amount", { hasText: amount }).waitFor({ state: "attached" });
  await page.locator("main:not([aria-busy])").waitFor();
  // What depends on its size is drawn again after the first layout.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
}

/** Collects errors of a page. A stream that the test cuts is none. */
export function watch(page: Page): string[] {
  const errors: string[] = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text())) errors.push(message.text());
  });
  page.on("dialog", (dialog) => {
    errors.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  return errors;
}

/** Repeats a check until it holds: the page draws some time after a key, a click or a message. */
export async function eventually(check: () => Promise<void>): Promise<void> {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > end) throw error;
    }
    await setTimeout(50);
  }
}

/** Keeps a picture of the page if the run keeps them. If a document shows it, the page has to say the same as there. */
export async function picture(page: Page, name: string): Promise<void> {
  if (SCREENSHOTS !== "") {
    await mkdir(SCREENSHOTS, { recursive: true });
    await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });
  }
  const shown = join(DOCUMENTED, name);
  if (!existsSync(`${shown}.png`)) return;
  if (PICTURES !== "") {
    await page.screenshot({ path: `${shown}.png` });
    await writeFile(`${shown}.txt`, (await said(page)).join("\n") + "\n");
  } else {
    const before = (await readFile(`${shown}.txt`, "utf8")).trimEnd().split("\n");
    await eventually(async () => assert.deepEqual(await said(page), before, OUTDATED));
  }
}

/** What the page says, a line each. */
async function said(page: Page): Promise<string[]> {
  const lines = (await page.locator("body").innerText()).split("\n").map((line) => line.trim());
  return lines.filter((line) => line !== "");
}

/** The texts of a table's cells, row by row. */
export function cells(page: Page, caption: string): Promise<string[][]> {
  return page.locator("table", { has: page.locator("caption", { hasText: caption }) }).locator("tbody tr:not([aria-hidden])").evaluateAll(
    (rows) => rows.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.innerText.trim())),
  );
}

/** Opens one life by its name in the table of volumes. */
export async function openLife(page: Page, name: string): Promise<void> {
  await page.getByRole("link", { name, exact: true }).first().click();
  await page.getByRole("heading", { level: 1, name }).waitFor();
  await page.locator(".plot svg").first().waitFor();
  await settled(page);
}
