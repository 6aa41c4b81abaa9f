/** Recognises what a server sends again after a cut: its history from the start. */

import { number, text } from "../model/json.ts";

/** Messages of the last two seconds before the cut are compared as texts: their times can be out of order. */
const WINDOW = 2e6;
const RECENT = 4000;

export class Repeats {
  private recent: string[] = [];
  private newest = 0;
  private hello = 0;
  /** The newest time before the cut, and the texts around it; undefined without a cut. */
  private before: { t: number; texts: ReadonlySet<string> } | undefined;

  /** The stream is open again. */
  resume(): void {
    this.before = { t: this.newest, texts: new Set(this.recent) };
  }

  /** True if this message was there before the cut. */
  is(json: string, message: unknown): boolean {
    const t = number(message, "t") ?? number(message, "now") ?? 0;
    const isHello = text(message, "type") === "hello";
    // Another process has another beginning, and nothing of it was there.
    if (isHello && t !== this.hello) this.before = undefined;
    if (isHello) this.hello = t;
    if (this.before && t > 0 && t <= this.before.t) {
      if (t < this.before.t - WINDOW || this.before.texts.has(json)) return true;
    }
    this.newest = Math.max(this.newest, t);
    this.recent.push(json);
    if (this.recent.length > 2 * RECENT) this.recent = this.recent.slice(-RECENT);
    return false;
  }
}
