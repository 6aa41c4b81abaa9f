/** A browser, and a server that speaks as `kubectl hostloop ui` does. */

import { createServer, type ServerResponse } from "node:http";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { after } from "node:test";
import { chromium, type Browser, type BrowserContextOptions, type Page } from "playwright-core";

const PAGE = "dist/index.html";
const TOKEN = "t0ken";
const SESSION = "s3ssion";
/** Messages that are sent at once. */
const PART = 200;
/** How long a test waits for the page. */
export const PATIENCE_MS = 60_000;
const { SCREENSHOTS = "" } = process.env;

let browser: Promise<Browser> | undefined;

// At the end of the file: a test that launches the browser does not own it.
after(async () => (await browser)?.close());

/** The browser of this test file. */
export function launch(): Promise<Browser> {
  if (!browser) {
    // Root has no sandbox in chromium, and tests often run as root.
    const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
    browser = chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args });
  }
  return browser;
}

export class Server {
  url = "";
  private token = TOKEN;
  private messages: unknown[];
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

  /** Breaks the streams that are open. */
  cut(): void {
    for (const stream of this.streams) stream.destroy();
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

/** Opens the page on a stream of messages. `at` is a part of the address, `init` runs before the page. */
export async function open(
  messages: readonly unknown[], options: BrowserContextOptions = {}, at = "", init: () => void = () => {},
): Promise<Opened> {
  const context = await (await launch()).newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const server = await Server.start(messages);
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  await page.addInitScript(init);
  const errors = watch(page);
  after(async () => {
    await context.close();
    server.stop();
  });
  await page.goto(server.url + at);
  return { page, server, errors };
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

/** Keeps a picture of the page if the run keeps them. */
export async function picture(page: Page, name: string): Promise<void> {
  if (SCREENSHOTS === "") return;
  await mkdir(SCREENSHOTS, { recursive: true });
  await page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });
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
}
