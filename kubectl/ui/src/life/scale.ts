/** The axis of time: from a time to a place between 0 and 1, and back. */

export interface Scale {
  /** Increasing times and their increasing places; both have the same length of at least two. */
  t: readonly number[];
  place: readonly number[];
}

export function linear(from: number, to: number): Scale {
  return { t: [from, Math.max(to, from + 1)], place: [0, 1] };
}

/** Below this, times are as good as one. */
const FINEST = 100;

/**
 * A scale on which short and long times are both visible: each time between two marks has a place by
 * the logarithm of its length.
 */
export function folded(from: number, to: number, marks: Iterable<number>): Scale {
  const end = Math.max(to, from + 1);
  const inside = [...marks].filter((mark) => mark > from && mark < end).sort((a, b) => a - b);
  const t = [from];
  for (const mark of inside) if (mark - t.at(-1)! >= FINEST) t.push(mark);
  if (t.length > 1 && end - t.at(-1)! < FINEST) t.pop();
  t.push(end);
  const weights = t.slice(1).map((later, i) => Math.log2(1 + (later - t[i]!) / FINEST));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let sum = 0;
  const place = [0, ...weights.map((weight) => (sum += weight) / total)];
  place[place.length - 1] = 1;
  return { t, place };
}

export const placeOf = (scale: Scale, t: number): number => interpolate(scale.t, scale.place, t);
export const timeAt = (scale: Scale, place: number): number => interpolate(scale.place, scale.t, place);

/** Outside the range, the first or last section goes on. */
function interpolate(from: readonly number[], to: readonly number[], value: number): number {
  let low = 0;
  let high = from.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (from[middle]! <= value) low = middle;
    else high = middle - 1;
  }
  const [a, b] = [from[low]!, from[low + 1]!];
  const part = b === a ? 0 : (value - a) / (b - a);
  return to[low]! + part * (to[low + 1]! - to[low]!);
}

/** The part of the axis that is visible, as places. */
export interface Window {
  from: number;
  to: number;
}

export const WHOLE: Window = { from: 0, to: 1 };
const CLOSEST = 1e-9;

/** Zooms around a place by a factor (above 1: closer), within the axis. */
export function zoom(window: Window, factor: number, around: number): Window {
  const width = Math.min(1, Math.max(CLOSEST, (window.to - window.from) / factor));
  const part = (around - window.from) / (window.to - window.from);
  return within(around - part * width, width);
}

/** Moves the window by a part of its width. */
export function pan(window: Window, part: number): Window {
  const width = window.to - window.from;
  return within(window.from + part * width, width);
}

function within(from: number, width: number): Window {
  const start = Math.min(Math.max(0, from), 1 - width);
  return { from: start, to: start + width };
}

/** The window that shows an interval with some room on both sides. */
export function around(scale: Scale, t: number, end: number): Window {
  const from = placeOf(scale, t);
  const width = Math.max(placeOf(scale, end) - from, CLOSEST);
  return within(from - width * 0.15, Math.min(1, width * 1.3));
}

/** A mark on the axis. */
export interface Tick {
  t: number;
  x: number;
  label: number;
}

/** Nice steps of time, in microseconds. */
const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 10e6, 30e6, 60e6,
  120e6, 300e6, 600e6, 1800e6, 3600e6, 7200e6, 6 * 3600e6, 12 * 3600e6, 86_400e6, 2 * 86_400e6, 7 * 86_400e6,
  28 * 86_400e6,
];

/**
 * Ticks of the visible part, at least `gap` pixels apart. `x` is in pixels, `label` is the time since
 * the start of the axis. A scale with many sections has ticks at their ends.
 */
export function ticks(scale: Scale, window: Window, width: number, gap: number): Tick[] {
  const start = scale.t[0]!;
  const x = (t: number) => ((placeOf(scale, t) - window.from) / (window.to - window.from)) * width;
  const from = timeAt(scale, window.from);
  const to = timeAt(scale, window.to);
  const sections = scale.t.filter((t) => t >= from && t <= to);
  const candidates = sections.length > 2 ? sections : even(from, to, start, width / gap);
  const found: Tick[] = [];
  for (const t of candidates) {
    const tick = { t, x: x(t), label: t - start };
    if (found.length === 0 || tick.x - found.at(-1)!.x >= gap) found.push(tick);
  }
  return found;
}

function even(from: number, to: number, start: number, most: number): number[] {
  const step = STEPS.find((s) => (to - from) / s <= most) ?? (to - from) / Math.max(1, most);
  const found: number[] = [];
  for (let t = start + Math.ceil((from - start) / step) * step; t <= to; t += step) found.push(t);
  return found;
}
