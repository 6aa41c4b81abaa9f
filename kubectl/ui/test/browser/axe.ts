/** What axe finds. */

import { readFile } from "node:fs/promises";
import type { Page } from "playwright-core";

const AXE = await readFile("node_modules/axe-core/axe.min.js", "utf8");

export interface Violation {
  id: string;
  help: string;
  nodes: string[];
}

/** The violations of accessibility on a page. */
export async function violations(page: Page): Promise<Violation[]> {
  await page.evaluate(AXE);
  return page.evaluate(async () => {
    interface Axe {
      run(): Promise<{ violations: { id: string; help: string; nodes: { html: string; failureSummary?: string }[] }[] }>;
    }
    const { violations } = await (globalThis as unknown as { axe: Axe }).axe.run();
    return violations.map(({ id, help, nodes }) => ({ id, help, nodes: nodes.slice(0, 3).map((n) => `${n.html.slice(0, 200)} ${n.failureSummary ?? ""}`) }));
  });
}
