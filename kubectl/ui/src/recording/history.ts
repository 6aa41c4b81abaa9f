/** The messages that were seen, up to a limit. */

import type { Message } from "../model/message.ts";

export interface Entry {
  message: Message;
  /** The message as it came: what a recording saves. */
  raw: unknown;
  size: number;
}

interface Kept extends Entry {
  /** Its time in the order of arrival: never before that of the entry before. */
  at: number;
}

/** A shortened history: the first `cut` entries became fewer. */
export interface Cut {
  cut: number;
  removed: number;
  /** What ended before this time is not in the history any more. */
  before: number;
}

export interface Limit {
  messages: number;
  bytes: number;
}

export const LIMIT: Limit = { messages: 100_000, bytes: 64 * 1024 * 1024 };

/** The part that is dropped at once when the history is full. */
const DROPPED = 0.25;

export class History {
  entries: Kept[] = [];
  bytes = 0;
  private readonly limit: Limit;

  constructor(limit: Limit = LIMIT) {
    this.limit = limit;
  }

  /** Adds an entry. If the history is full, the oldest entries become the state that they led to. */
  add(entry: Entry): Cut | undefined {
    this.entries.push({ ...entry, at: Math.max(entry.message.t, this.end) });
    this.bytes += entry.size;
    if (this.entries.length <= this.limit.messages && this.bytes <= this.limit.bytes) return undefined;
    const cut = Math.ceil(this.entries.length * DROPPED);
    const first = base(this.entries.slice(0, cut));
    const before = this.entries[cut]?.at ?? this.end;
    this.entries = [...first, ...this.entries.slice(cut)];
    this.bytes = this.entries.reduce((sum, each) => sum + each.size, 0);
    return { removed: cut - first.length, cut, before };
  }

  /** The time of the first entry. */
  get from(): number {
    return this.entries.find((entry) => entry.at > 0)?.at ?? 0;
  }

  /** The time of the last entry. */
  get end(): number {
    return this.entries.at(-1)?.at ?? 0;
  }

  /** The number of entries up to a time. */
  indexAt(t: number): number {
    let low = 0;
    let high = this.entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.entries[middle]!.at <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** The entries that still say what is: the last one of each object, report, verdict, open problem and exploration. */
export function base<E extends Entry>(entries: readonly E[]): E[] {
  const last = new Map<string, E>();
  for (const entry of entries) {
    const { message } = entry;
    switch (message.type) {
      case "hello":
        last.set("hello", entry);
        break;
      case "object": {
        const key = `object ${message.kind} ${message.key}`;
        last.delete(key);
        if (message.op === "set") last.set(key, entry);
        break;
      }
      case "report":
        last.set(`report ${message.node}`, entry);
        break;
      case "extents": {
        // The map of an image that is gone is empty.
        const key = `extents ${message.volume}`;
        if (message.extents.length > 0) last.set(key, entry);
        else last.delete(key);
        break;
      }
      case "verdict": {
        const key = `verdict ${message.lives.join(" ")}`;
        last.delete(key);
        if (message.verdict) last.set(key, entry);
        break;
      }
      case "problem":
        last.set(`problem ${message.about}`, entry);
        break;
      case "exploration":
        last.set("exploration", entry);
        break;
      case "solved":
        last.delete(`problem ${message.about}`);
        break;
      default:
    }
  }
  return [...last.values()];
}
