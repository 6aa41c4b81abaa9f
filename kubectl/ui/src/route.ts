/** What is shown, as it stands in the fragment of the page's address. */

export type View = "volumes" | "life" | "node" | "cluster" | "exploration";

const VIEWS: readonly View[] = ["volumes", "life", "node", "cluster", "exploration"];

export interface Route {
  view: View;
  /** The key of the life that is shown, or the node's name. */
  life: string;
  node: string;
  /** The filters of the table of volumes. */
  filter: { namespace: string; node: string; text: string; state: string };
}

export function parseRoute(fragment: string): Route {
  const values = new URLSearchParams(fragment.replace(/^#/, ""));
  const value = (name: string) => values.get(name) ?? "";
  return {
    view: VIEWS.find((view) => view === value("view")) ?? "volumes",
    life: value("life"),
    node: value("node"),
    filter: { namespace: value("ns"), node: value("on"), text: value("text"), state: value("state") },
  };
}

/** The token of an address that was not opened before. It is in no address that the page makes. */
export function tokenOf(fragment: string): string {
  return new URLSearchParams(fragment.replace(/^#/, "")).get("token") ?? "";
}

export function fragment(route: Route): string {
  const values = new URLSearchParams();
  const add = (name: string, value: string) => {
    if (value !== "") values.set(name, value);
  };
  add("view", route.view === "volumes" ? "" : route.view);
  if (route.view === "life") add("life", route.life);
  if (route.view === "node") add("node", route.node);
  add("ns", route.filter.namespace);
  add("on", route.filter.node);
  add("text", route.filter.text);
  add("state", route.filter.state);
  return `#${values}`;
}
