/** What the messages so far have shown. */

import type { Extent, Hello, ProcessEvent } from "./message.ts";
import type { Fields, Unchecked } from "./json.ts";
import type * as Wire from "./wire.generated.ts";

/** One version of a Kubernetes object, and when it arrived. */
export interface Version {
  t: number;
  op: "set" | "delete";
  object: Fields;
}

/** A Kubernetes object from its first to its last version. Another UID is another object. */
export interface Tracked {
  kind: string;
  key: string;
  uid: string;
  versions: Version[];
  /** Versions that were left out between the first and the last ones. */
  dropped: number;
  /** The newest state; after a deletion, the last one before it. */
  object: Fields;
  /** When it was created: by its own time stamp if the page was late. */
  created: number;
  deleted: number | undefined;
  /** The sequence number of the `hello` after which it was last sent. */
  hello: number;
}

/** An event of a process, with its place. A later event with the same ID completes it. */
export interface Span extends ProcessEvent {
  node: string;
  process: string;
  /** Unique in the state: process, start of the process, and span ID or sequence number. */
  key: string;
}

export interface Gap {
  t: number;
  node: string;
  process: string;
  lost: number;
}

/** How many bytes of an image were shared at one time. */
export interface Sharing {
  t: number;
  shared: number;
  own: number;
}

export interface ImageExtents {
  node: string;
  t: number;
  extents: Extent[];
  history: Sharing[];
}

export interface NodeReport {
  t: number;
  report: Unchecked<Wire.Report>;
  /** Volumes, snapshots and groups by their IDs. */
  items: Map<string, ReportItem>;
  pools: Map<string, Unchecked<Wire.PoolReport>>;
}

/** The fields of a volume, a snapshot or a group in a report. */
export type ReportFields = Unchecked<Wire.VolumeReport & Wire.SnapshotReport & Wire.GroupReport>;

export interface ReportItem {
  list: string;
  item: ReportFields;
  /** The item as JSON, to notice that it changed. */
  json: string;
}

/** Values of one metric at one node, newest last. */
export interface Series {
  t: number[];
  value: number[];
}

export interface State {
  hello: Hello | null;
  hellos: number;
  /** The time of the newest message. */
  now: number;
  messages: number;
  /** The object that has a kind and key now, by `kind key`. */
  current: Map<string, Tracked>;
  /** All objects by kind, in the order of their first versions. */
  kinds: Map<string, Set<Tracked>>;
  uids: Map<string, Tracked>;
  /** Objects by what they refer to: see `links`. */
  links: Map<string, Set<Tracked>>;
  spans: Map<string, Span>;
  /** Spans by trace and by each ID in request and answer. */
  subjects: Map<string, Span[]>;
  /** Phases by the key of their parent. */
  children: Map<string, Span[]>;
  /** The highest sequence number of each start of a process. */
  sequence: Map<string, number>;
  gaps: Gap[];
  /** Leases that processes acquired or lost, newest last. */
  leaseChanges: Span[];
  reports: Map<string, NodeReport>;
  extents: Map<string, ImageExtents>;
  /** Series by metric name with labels, by node or controller's process. */
  metrics: Map<string, Map<string, Series>>;
  problems: Map<string, { t: number; text: string }>;
  /** What the program says of each life, by its key. */
  verdicts: Map<string, Wire.ShownVerdict>;
  /** What `kubectl hostloop explore` has found, if the page shows that. */
  exploration: Unchecked<Wire.ExplorationReport> | undefined;
  /** Keys of lives with rows that are out of date. */
  dirty: Set<string>;
}

export function emptyState(): State {
  return {
    hello: null,
    hellos: 0,
    now: 0,
    messages: 0,
    current: new Map(),
    kinds: new Map(),
    uids: new Map(),
    links: new Map(),
    spans: new Map(),
    subjects: new Map(),
    children: new Map(),
    sequence: new Map(),
    gaps: [],
    leaseChanges: [],
    reports: new Map(),
    extents: new Map(),
    metrics: new Map(),
    problems: new Map(),
    verdicts: new Map(),
    exploration: undefined,
    dirty: new Set(),
  };
}

/** Adds an item to the list or set of a key. */
export function addTo<Key, Item>(map: Map<Key, Set<Item>>, key: Key, item: Item): void {
  const found = map.get(key);
  if (found) found.add(item);
  else map.set(key, new Set([item]));
}

export function pushTo<Key, Item>(map: Map<Key, Item[]>, key: Key, item: Item): void {
  const found = map.get(key);
  if (found) found.push(item);
  else map.set(key, [item]);
}

/** The objects of a kind that exist now. */
export function existing(state: State, kind: string): Tracked[] {
  return [...(state.kinds.get(kind) ?? [])].filter((tracked) => tracked.deleted === undefined);
}
