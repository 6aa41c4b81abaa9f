/** Nodes, leases and placement. */

import { nodes, pools } from "../node/chain.ts";
import { list, number, text } from "../model/json.ts";
import { existing, type State } from "../model/state.ts";
import { quantity, time } from "../model/text.ts";

export interface NodeRow {
  name: string;
  /** `ready`, `not ready`, `cordoned` or `unknown`. */
  state: string;
  size: number;
  free: number;
  promised: number;
  /** What new volumes can have; undefined if neither capacity objects nor pools show it. */
  room: number | undefined;
  volumes: number;
  reported: number | undefined;
}

/** The nodes, those with the most room first, as immediate claims are placed. */
export function nodeRows(state: State): NodeRow[] {
  const capacities = capacityByNode(state);
  return nodes(state).map((name) => {
    const all = pools(state, name);
    const sum = (of: (pool: (typeof all)[number]) => number) => all.reduce((total, pool) => total + of(pool), 0);
    const known = all.filter((pool) => pool.available !== undefined);
    const report = state.reports.get(name);
    return {
      name,
      state: nodeState(state, name),
      size: sum((pool) => pool.size),
      free: sum((pool) => pool.free),
      promised: sum((pool) => pool.promised),
      room: capacities.get(name) ?? (known.length > 0 ? sum((pool) => pool.available ?? 0) : undefined),
      volumes: list(report?.report.volumes).length,
      reported: report?.t,
    };
  }).sort((a, b) => (b.room ?? -1) - (a.room ?? -1) || (a.name < b.name ? -1 : 1));
}

function nodeState(state: State, name: string): string {
  const node = state.current.get(`Node ${name}`);
  if (!node || node.deleted !== undefined) return "unknown";
  const ready = list(node.object, "status", "conditions").find((c) => text(c, "type") === "Ready");
  if (ready && text(ready, "status") !== "True") return "not ready";
  const spec = node.object["spec"];
  return typeof spec === "object" && spec !== null && (spec as Record<string, unknown>)["unschedulable"] === true
    ? "cordoned"
    : "ready";
}

/** The largest capacity of each node, by the CSIStorageCapacity objects with a host name. */
function capacityByNode(state: State): Map<string, number> {
  const found = new Map<string, number>();
  for (const { object } of existing(state, "CSIStorageCapacity")) {
    const size = quantity(text(object, "capacity"));
    const labels = (object["nodeTopology"] as { matchLabels?: unknown } | undefined)?.matchLabels;
    if (size === undefined || typeof labels !== "object" || labels === null) continue;
    for (const value of Object.values(labels)) {
      if (typeof value === "string") found.set(value, Math.max(size, found.get(value) ?? 0));
    }
  }
  return found;
}

export interface LeaseRow {
  name: string;
  holder: string;
  /** When it was renewed, by the holder's clock. */
  renewed: number | undefined;
  /** How long it lasts without renewal, in microseconds. */
  lasts: number;
  transitions: number;
}

export function leases(state: State): LeaseRow[] {
  return existing(state, "Lease").map(({ key, object }) => ({
    name: key,
    holder: text(object, "spec", "holderIdentity"),
    renewed: time(text(object, "spec", "renewTime")),
    lasts: (number(object, "spec", "leaseDurationSeconds") ?? 0) * 1e6,
    transitions: number(object, "spec", "leaseTransitions") ?? 0,
  })).sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** True if the holder has not renewed the lease in time. */
export function expired(lease: LeaseRow, now: number): boolean {
  return lease.holder === "" || (lease.renewed !== undefined && now - lease.renewed > lease.lasts);
}
