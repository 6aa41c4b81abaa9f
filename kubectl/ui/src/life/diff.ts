/** The difference between two versions of an object. */

import type { Fields } from "../model/json.ts";

export interface Change {
  path: string;
  /** JSON of the value; undefined if there was none. */
  before: string | undefined;
  after: string | undefined;
}

/** Fields that change with every write. */
const NOISE = new Set(["metadata.resourceVersion", "metadata.generation", "metadata.managedFields"]);
const MOST = 200;
const DEEPEST = 24;

/** The fields that differ, in the order of the newer version. */
export function diff(before: unknown, after: unknown): Change[] {
  const changes: Change[] = [];
  compare("", before, after, 0, changes);
  return changes;
}

function compare(path: string, before: unknown, after: unknown, depth: number, changes: Change[]): void {
  if (before === after || NOISE.has(path) || changes.length >= MOST) return;
  const [a, b] = [entries(before), entries(after)];
  if (a && b && depth < DEEPEST) {
    for (const key of new Set([...b.keys(), ...a.keys()])) {
      compare(path === "" ? key : `${path}.${key}`, a.get(key), b.get(key), depth + 1, changes);
    }
    return;
  }
  const [x, y] = [JSON.stringify(before), JSON.stringify(after)];
  if (x !== y) changes.push({ path, before: x, after: y });
}

/** The parts of an object or a list. Parts of a list are named as Kubernetes merges them. */
function entries(value: unknown): Map<string, unknown> | undefined {
  if (Array.isArray(value)) {
    const names = value.map((item, i) => partName(item) ?? String(i));
    const distinct = new Set(names).size === names.length;
    return new Map(value.map((item, i) => [`[${distinct ? names[i] : i}]`, item]));
  }
  if (typeof value === "object" && value !== null) return new Map(Object.entries(value as Fields));
  return undefined;
}

function partName(item: unknown): string | undefined {
  if (typeof item === "string") return item;
  if (typeof item !== "object" || item === null) return undefined;
  for (const key of ["name", "type", "uid"]) {
    const value = (item as Fields)[key];
    if (typeof value === "string") return value;
  }
  return undefined;
}
