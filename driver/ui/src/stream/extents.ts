/** Asks for the extents of the images of the node that is shown, one at a time. */

import type { Engine } from "../engine.ts";
import { nodes } from "../node/chain.ts";
import { list, text } from "../model/json.ts";
import type { Route } from "../route.ts";

/** Images that are asked for. Each request reads the map of one file. */
const MOST = 64;

export class ExtentRequests {
  private readonly engine: Engine;
  private readonly token: string;
  /** The node and the time of the report that was asked about last. */
  private asked = "";
  private busy = false;

  constructor(engine: Engine, token: string) {
    this.engine = engine;
    this.token = token;
  }

  /** Asks again after each report of the node. */
  follow(route: Route): void {
    if (route.view !== "node" || this.busy || this.engine.mode !== "live") return;
    const { state } = this.engine;
    const node = route.node || nodes(state)[0] || "";
    const report = state.reports.get(node);
    const stamp = `${node} ${report?.t}`;
    if (!report || stamp === this.asked) return;
    this.asked = stamp;
    const images = [...list(report.report, "volumes"), ...list(report.report, "snapshots")];
    void this.ask(node, images.slice(0, MOST).map((image) => text(image, "id")));
  }

  private async ask(node: string, ids: readonly string[]): Promise<void> {
    this.busy = true;
    try {
      for (const volume of ids) {
        const query = new URLSearchParams({ token: this.token, node, volume });
        const answer = await fetch(`extents?${query}`);
        // An image that is gone since the report is no problem.
        if (!answer.ok && answer.status !== 404) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
      }
      this.engine.solved(`extents ${node}`);
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      this.engine.problem(`extents ${node}`, `The blocks of the images of node ${node} can't be read: ${why}`);
    } finally {
      this.busy = false;
    }
  }
}
