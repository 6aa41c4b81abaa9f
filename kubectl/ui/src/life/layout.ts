/** Where the items of a timeline are drawn: only those that are visible, and never two on one pixel. */

import { duration, visible } from "../model/text.ts";
import { GROUPS, type Item, type Lane } from "./items.ts";
import { placeOf, type Scale, type Window } from "./scale.ts";

export interface Placed {
  item: Item;
  x: number;
  width: number;
  /** The text inside of the bar; empty if it does not fit. */
  label: string;
}

export interface DrawnLane {
  key: string;
  title: string;
  /** The title of the group, at its first lane. */
  heading: string;
  y: number;
  labelY: number;
  barY: number;
  placed: Placed[];
}

export interface Drawing {
  lanes: DrawnLane[];
  height: number;
}

const HEADING = 20;
const LANE = 22;
/** On narrow screens a lane's title stands above its bars. */
const NARROW_LANE = 36;
const NARROWEST = 3;
/** The width of a character of a label. */
const CHARACTER = 6.4;

export function layout(lanes: readonly Lane[], scale: Scale, window: Window, width: number, narrow: boolean): Drawing {
  let y = 4;
  let group = "";
  const titles = new Map<string, number>();
  const drawn = lanes.map((lane): DrawnLane => {
    const first = lane.group !== group;
    group = lane.group;
    const heading = first ? GROUPS.find((g) => g.group === lane.group)!.title : "";
    const offset = first ? HEADING : 0;
    const number = titles.get(lane.group + lane.title) ?? 0;
    titles.set(lane.group + lane.title, number + 1);
    const found = {
      key: `${lane.group} ${lane.title} ${number}`,
      title: number === 0 ? lane.title : "",
      heading,
      y,
      labelY: offset + (narrow ? 12 : 14),
      barY: offset + (narrow ? 16 : 1),
      placed: place(lane.items, scale, window, width),
    };
    y += offset + (narrow ? NARROW_LANE : LANE);
    return found;
  });
  return { lanes: drawn, height: y };
}

function place(items: readonly Item[], scale: Scale, window: Window, width: number): Placed[] {
  const placed: Placed[] = [];
  const toX = (t: number) => ((placeOf(scale, t) - window.from) / (window.to - window.from)) * width;
  let lastBar = Number.NEGATIVE_INFINITY;
  let lastMoment = Number.NEGATIVE_INFINITY;
  for (const item of items) {
    const from = toX(item.t);
    const to = toX(item.end);
    if (to < -8 || from > width + 8) continue;
    if (item.moment) {
      if (from - lastMoment < 1) continue;
      lastMoment = from;
      placed.push({ item, x: from, width: 0, label: "" });
      continue;
    }
    if (to - lastBar < 1 && placed.length > 0) continue;
    lastBar = to;
    // SVG has the precision of single floats: a bar of kilometres would be drawn wrongly.
    const x = Math.max(from, -8);
    const end = Math.min(Math.max(to, from + NARROWEST), width + 8);
    placed.push({ item, x, width: end - x, label: labelOf(item, Math.min(end, width) - Math.max(x, 0)) });
  }
  return placed;
}

function labelOf(item: Item, room: number): string {
  if (item.detail.is === "lifetime") return "";
  const name = visible(item.label);
  const full = `${name} ${duration(item.end - item.t)}`;
  if (full.length * CHARACTER + 8 <= room) return full;
  return name.length * CHARACTER + 8 <= room ? name : "";
}

/** The times at which anything begins or ends. */
export function marksOf(all: readonly Item[]): Set<number> {
  const marks = new Set<number>();
  for (const item of all) {
    marks.add(item.t);
    marks.add(item.end);
  }
  return marks;
}

/** The item beside another one: `along` in its lane, or `across` in the next lane at the nearest time. */
export function step(lanes: readonly Lane[], from: Item | undefined, along: number, across: number): Item | undefined {
  if (!from) return lanes[0]?.items[0];
  const lane = lanes.findIndex((l) => l.items.some((item) => item.id === from.id));
  if (lane === -1) return lanes[0]?.items[0];
  if (across === 0) {
    const { items } = lanes[lane]!;
    return items[items.findIndex((item) => item.id === from.id) + along];
  }
  return nearest(lanes[lane + across]?.items ?? [], from.t);
}

function nearest(items: readonly Item[], t: number): Item | undefined {
  let best: Item | undefined;
  for (const item of items) if (!best || Math.abs(item.t - t) < Math.abs(best.t - t)) best = item;
  return best;
}
