/** The items of an exploration's timeline: its cuts, and what was written from one to the next. */

import type { Cut, Exploration, Result } from "../model/exploration.ts";
import { bytes } from "../model/text.ts";
import type { Item, Tone } from "./items.ts";

const LANES: Readonly<Record<Result, { lane: string; tone: Tone }>> = {
  passed: { lane: "Passed", tone: "ok" },
  failed: { lane: "Failed", tone: "bad" },
  unknown: { lane: "Unknown", tone: "wait" },
  unchecked: { lane: "Not checked", tone: "object" },
};

/** All items, by their start. */
export function cutItems(exploration: Exploration): Item[] {
  const { cuts } = exploration;
  const most = Math.max(1, ...cuts.map((cut) => cut.written ?? 0));
  return cuts.flatMap((cut, i) => {
    const item = cutItem(cut, exploration);
    const before = cuts[i - 1];
    if (before === undefined || cut.written === undefined) return [item];
    return [writtenItem(cut, before.t, cut.written, most), item];
  });
}

function cutItem(cut: Cut, exploration: Exploration): Item {
  const { lane, tone } = LANES[cut.result];
  return {
    id: `cut ${cut.number}`,
    group: "cuts",
    lane,
    t: cut.t,
    end: cut.t,
    moment: true,
    label: `Cut ${cut.number}`,
    outcome: cut.result,
    tone,
    detail: { is: "cut", cut, exploration },
  };
}

function writtenItem(cut: Cut, from: number, written: number, most: number): Item {
  return {
    id: `written ${cut.number}`,
    group: "writes",
    lane: "Written",
    t: from,
    end: cut.t,
    moment: false,
    label: bytes(written),
    outcome: "",
    tone: "use",
    detail: { is: "written", written, share: written / most },
  };
}
