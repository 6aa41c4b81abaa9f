/** Saves what was seen as one HTML file: this page with the messages in it. */

import { page, recordingJson } from "./document.ts";
import type { History } from "./history.ts";

/** The HTML of this page with a recording. */
export function recordingPage(document: Document, history: History, version: string): string {
  const content = (id: string) => document.getElementById(id)?.textContent ?? "";
  const policy = document.querySelector('meta[http-equiv="Content-Security-Policy"]')?.getAttribute("content") ?? "";
  return page({
    policy,
    style: content("style"),
    program: content("program"),
    data: { recording: recordingJson(version, history.entries.map((entry) => entry.raw)) },
  });
}

/** Hands a file to the browser's downloads. */
export function download(document: Document, name: string, html: string): void {
  const url = URL.createObjectURL(new Blob([html], { type: "text/html" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** The name of the file, with the time of the last message. */
export function fileName(end: number): string {
  const date = new Date(end / 1e3);
  const stamp = Number.isNaN(date.getTime()) ? "empty" : date.toISOString().slice(0, 19).replace(/[:T]/g, "-");
  return `hostloop-${stamp}.html`;
}
