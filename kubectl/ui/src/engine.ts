/**
 * What the page shows: the state at one time of the history. Messages are applied in animation
 * frames, a few milliseconds of work in each.
 */

import { fold, prune } from "./model/fold.ts";
import { parse } from "./model/message.ts";
import { Rows } from "./model/rows.ts";
import { emptyState, type State } from "./model/state.ts";
import { History } from "./recording/history.ts";
import { Repeats } from "./stream/repeats.ts";

/** Milliseconds of folding in a frame, and with a long backlog. */
const BUDGET = 6;
const BACKLOG_BUDGET = 30;
const BACKLOG = 3000;
const ROWS_BUDGET = 4;
/** How often the shown time moves on without a message. */
const BEAT_MS = 500;

export type Mode = "live" | "paused" | "playing";

export class Engine {
  state: State = emptyState();
  readonly history = new History();
  readonly rows = new Rows();
  readonly repeats = new Repeats();
  mode: Mode = "live";
  speed = 1;
  /** The time that is shown unless it is live. */
  at = 0;
  /** True for a page that shows a saved recording. */
  readonly recorded: boolean;
  /** Problems of the page itself. They are not part of the history. */
  readonly problems = new Map<string, string>();
  /** Messages of a type that this page does not know. */
  unknown = 0;
  /** Grows with each change of what is shown. */
  version = 0;
  /** Asks for a frame. */
  private wake = () => {};
  private applied = 0;
  /** The state of another time while it is computed. */
  private next: State | undefined;
  private serverOffset: number | undefined;
  private lastFrame = 0;
  private readonly changed: () => void;

  constructor(recorded: boolean, changed: () => void) {
    this.recorded = recorded;
    this.changed = changed;
    this.mode = recorded ? "paused" : "live";
  }

  /** Takes a message as JSON. */
  receive(json: string): void {
    let raw: unknown;
    try {
      raw = JSON.parse(json);
    } catch {
      this.problem("stream", "A message of the stream was not JSON. It was left out.");
      return;
    }
    if (!this.repeats.is(json, raw)) this.add(raw, json.length);
  }

  add(raw: unknown, size: number): void {
    const message = parse(raw);
    if (!message) {
      this.unknown += 1;
      return;
    }
    if (message.t === 0) message.t = this.history.end;
    if (message.type === "hello" && !this.recorded) this.serverOffset = message.t - performance.now() * 1e3;
    const cut = this.history.add({ message, raw, size });
    this.wake();
    if (!cut) return;
    if (this.applied >= cut.cut && !this.next) {
      this.applied -= cut.removed;
      prune(this.state, cut.before);
    } else {
      this.restart();
    }
  }

  /** Shows the recording's end: all its messages are added. */
  loaded(): void {
    this.at = this.history.end;
    this.change();
  }

  problem(about: string, text: string): void {
    if (this.problems.get(about) === text) return;
    this.problems.set(about, text);
    this.change();
  }

  solved(about: string): void {
    if (this.problems.delete(about)) this.change();
  }

  /** The time that is shown. */
  now(): number {
    if (this.mode !== "live") return this.at;
    if (this.serverOffset === undefined) return this.state.now;
    return Math.max(this.state.now, this.serverOffset + performance.now() * 1e3);
  }

  seek(t: number): void {
    this.at = Math.min(Math.max(t, this.history.from), this.history.end);
    if (this.mode === "live") this.mode = "paused";
    if (this.history.indexAt(this.at) < this.applied) this.restart();
    this.change();
  }

  pause(): void {
    if (this.mode === "live") this.at = Math.max(this.state.now, this.history.from);
    this.mode = "paused";
    this.change();
  }

  play(): void {
    if (this.at >= this.history.end) this.seek(this.history.from);
    this.mode = "playing";
    this.lastFrame = 0;
    this.change();
  }

  live(): void {
    this.mode = "live";
    this.change();
  }

  private change(): void {
    this.version += 1;
    this.wake();
  }

  private restart(): void {
    this.next = emptyState();
    this.applied = 0;
  }

  /** Begins to apply messages. There are frames only while there is work: an empty one costs time, too. */
  run(): void {
    let asked = false;
    const frame = () => {
      asked = false;
      this.step(performance.now());
      if (this.mode === "playing" || !this.idle) this.wake();
    };
    this.wake = () => {
      if (!asked) requestAnimationFrame(frame);
      asked = true;
    };
    setInterval(() => {
      // A hidden tab gets no frames.
      if (asked) this.step(performance.now());
      this.wake();
    }, BEAT_MS);
    this.wake();
  }

  /** The work of one frame. */
  step(start: number): void {
    const elapsed = this.lastFrame === 0 ? 0 : start - this.lastFrame;
    this.lastFrame = start;
    if (this.mode === "playing") {
      this.at = Math.min(this.at + elapsed * 1e3 * this.speed, this.history.end);
      if (this.at >= this.history.end) this.mode = "paused";
      this.version += 1;
    }
    const target = this.mode === "live" ? this.history.entries.length : this.history.indexAt(this.at);
    this.apply(target, start);
    if (!this.next) {
      const before = this.rows.version;
      this.rows.refresh(this.state, this.now(), performance.now() + ROWS_BUDGET, () => performance.now());
      if (this.rows.version !== before) this.version += 1;
    }
    this.changed();
  }

  private apply(target: number, start: number): void {
    const state = this.next ?? this.state;
    const left = target - this.applied;
    const deadline = start + (left > BACKLOG || this.next ? BACKLOG_BUDGET : BUDGET);
    const { entries } = this.history;
    const before = this.applied;
    while (this.applied < target) {
      fold(state, entries[this.applied]!.message);
      this.applied += 1;
      // Reading the clock costs more than most messages.
      if ((this.applied & 31) === 0 && performance.now() > deadline) break;
    }
    if (this.applied !== before) this.version += 1;
    if (this.next && this.applied >= target) {
      this.state = this.next;
      this.next = undefined;
      this.rows.reset();
      this.version += 1;
    }
  }

  /** True if all messages up to the shown time are applied. */
  get idle(): boolean {
    return !this.next && this.state.dirty.size === 0 &&
      this.applied >= (this.mode === "live" ? this.history.entries.length : this.history.indexAt(this.at));
  }
}
