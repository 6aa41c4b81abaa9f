/** Which blocks of a pool belong to which images. */

import type { Extent } from "../model/message.ts";

export interface Image {
  id: string;
  /** Blocks of different pools are different blocks. */
  pool: string;
  /** Microseconds since the epoch: shared blocks have the colour of the oldest image. */
  created: number;
  extents: readonly Extent[];
}

/** A part of an image with the same sharers throughout. */
export interface Segment {
  offset: number;
  len: number;
  /** The image that gives the colour: the oldest one with these blocks. */
  owner: string;
  /** The other images with these blocks. */
  others: string[];
  /** The filesystem says that the blocks are shared, but no other known image has them. */
  hidden: boolean;
}

interface Edge {
  at: number;
  image: number;
  opens: boolean;
}

interface Range {
  from: number;
  to: number;
  images: number[];
}

/** The segments of each image, by its ID and in the order of their offsets. */
export function segments(images: readonly Image[]): Map<string, Segment[]> {
  const names = new Set(images.map((image) => image.pool));
  return new Map([...names].flatMap((name) => [...ofPool(images.filter((image) => image.pool === name))]));
}

function ofPool(images: readonly Image[]): Map<string, Segment[]> {
  const ranges = physicalRanges(images);
  const oldestFirst = (a: number, b: number) =>
    images[a]!.created - images[b]!.created || (images[a]!.id < images[b]!.id ? -1 : 1);
  return new Map(images.map((image, i) => {
    const found: Segment[] = [];
    for (const extent of image.extents) cut(extent, i, found);
    return [image.id, found];
  }));

  function cut(extent: Extent, i: number, found: Segment[]): void {
    const end = extent.physical + extent.len;
    for (let r = firstRange(ranges, extent.physical); r < ranges.length && ranges[r]!.from < end; r++) {
      const range = ranges[r]!;
      const from = Math.max(range.from, extent.physical);
      const to = Math.min(range.to, end);
      if (to <= from || !range.images.includes(i)) continue;
      const sharers = [...range.images].sort(oldestFirst);
      const others = sharers.filter((other) => other !== i).map((other) => images[other]!.id);
      append(found, {
        offset: extent.offset + (from - extent.physical),
        len: to - from,
        owner: images[sharers[0]!]!.id,
        others,
        hidden: extent.shared && others.length === 0,
      });
    }
  }
}

/** Ranges of the disk in order, each with the images that have it. */
function physicalRanges(images: readonly Image[]): Range[] {
  const edges: Edge[] = [];
  for (const [image, { extents }] of images.entries()) {
    for (const { physical, len } of extents) {
      edges.push({ at: physical, image, opens: true }, { at: physical + len, image, opens: false });
    }
  }
  edges.sort((a, b) => a.at - b.at);
  const ranges: Range[] = [];
  // An image can have the same blocks at several offsets.
  const open = new Map<number, number>();
  let from = 0;
  for (const { at, image, opens } of edges) {
    if (at > from && open.size > 0) ranges.push({ from, to: at, images: [...open.keys()] });
    from = at;
    const times = (open.get(image) ?? 0) + (opens ? 1 : -1);
    if (times > 0) open.set(image, times);
    else open.delete(image);
  }
  return ranges;
}

/** The index of the first range that ends after a place. */
function firstRange(ranges: readonly Range[], place: number): number {
  let low = 0;
  let high = ranges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle]!.to <= place) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Joins a segment with the one before it if only their place differs. */
function append(found: Segment[], segment: Segment): void {
  const last = found.at(-1);
  if (
    last && last.offset + last.len === segment.offset && last.owner === segment.owner &&
    last.hidden === segment.hidden && last.others.join() === segment.others.join()
  ) {
    last.len += segment.len;
  } else {
    found.push(segment);
  }
}

/** A part of an image that differs from another image. */
export interface Change {
  offset: number;
  len: number;
}

/**
 * The parts of an image that differ from an earlier one: where one has blocks that the other has not. Both images
 * exist, so a block that both have has one content.
 */
export function changes(earlier: readonly Extent[], later: readonly Extent[]): Change[] {
  const ends = [...earlier, ...later].flatMap(({ offset, len }) => [offset, offset + len]);
  const cuts = [...new Set(ends)].sort((a, b) => a - b);
  const found: Change[] = [];
  let e = 0;
  let l = 0;
  for (const [i, from] of cuts.entries()) {
    const to = cuts[i + 1];
    if (to === undefined) break;
    while (e < earlier.length && earlier[e]!.offset + earlier[e]!.len <= from) e++;
    while (l < later.length && later[l]!.offset + later[l]!.len <= from) l++;
    if (blockAt(earlier[e], from) === blockAt(later[l], from)) continue;
    const last = found.at(-1);
    if (last && last.offset + last.len === from) last.len += to - from;
    else found.push({ offset: from, len: to - from });
  }
  return found;
}

/** Where the disk has this byte of an image, if the extent has it. */
function blockAt(extent: Extent | undefined, at: number): number | undefined {
  return extent && extent.offset <= at ? extent.physical + (at - extent.offset) : undefined;
}

/** Changes as an image's parts, to be drawn. */
export function asSegments(found: readonly Change[]): Segment[] {
  return found.map(({ offset, len }) => ({ offset, len, owner: "", others: [], hidden: false }));
}

export interface Totals {
  own: number;
  shared: number;
}

/** Bytes that only this image has, and bytes that others have too. */
export function totals(parts: readonly Segment[]): Totals {
  const sum = { own: 0, shared: 0 };
  for (const part of parts) {
    if (part.others.length > 0 || part.hidden) sum.shared += part.len;
    else sum.own += part.len;
  }
  return sum;
}

export interface Bar {
  x: number;
  width: number;
  owner: string;
  shared: boolean;
  hidden: boolean;
}

/** The bars of an image of a size, in pixels. What is smaller than a pixel joins its neighbour. */
export function bars(parts: readonly Segment[], size: number, width: number): Bar[] {
  const found: Bar[] = [];
  for (const part of parts) {
    const x = (part.offset / size) * width;
    const bar = {
      x,
      width: Math.max((part.len / size) * width, 0.75),
      owner: part.owner,
      shared: part.others.length > 0,
      hidden: part.hidden,
    };
    const last = found.at(-1);
    const same = last && last.owner === bar.owner && last.shared === bar.shared && last.hidden === bar.hidden;
    if (last && same && x - (last.x + last.width) < 0.25) last.width = Math.max(last.width, x + bar.width - last.x);
    else if (last && x + bar.width <= last.x + last.width) continue;
    else found.push(bar);
  }
  return found;
}
