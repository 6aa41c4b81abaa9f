/** What goes wrong between the page and a cluster: each is a sentence, and the page goes on. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { claim, create, kubectl, pod, until, variable } from "./cluster.ts";
import { examine, keepFailures, problems, untilProblem, volumes } from "./page.ts";
import { visit, type Visit } from "./program.ts";

const { page, wire, errors } = await visit(variable("HOSTLOOP_LIVE_ADMIN"));
keepFailures(page);

/** A new claim appears: the page goes on. */
async function goesOn(name: string, of: Visit["page"] = page): Promise<void> {
  await create(claim(name));
  await until(`${name} on the page`, () => volumes(of), (rows) => rows.has(name));
}

test("a cut stream is a sentence, and the page goes on", async () => {
  await goesOn("before-the-cut");
  wire.cut();
  await untilProblem(page, /^The stream was cut\./);
  await create(claim("meanwhile"));
  assert.ok((await volumes(page)).has("before-the-cut"), "what was seen stays");
  await examine(page, "live-cut");
  wire.mend();
  await until("meanwhile on the page", () => volumes(page), (rows) => rows.has("meanwhile"));
  await untilProblem(page, /^The stream was cut\./, false);
  assert.deepEqual(errors, []);
});

const hostloop = (...args: string[]) => kubectl("-n", "hostloop", ...args);

/** Lets no node match the driver's pods, or each node again. */
const placeDriver = (nowhere: boolean) => hostloop(
  "patch", "daemonset/hostloop", "--patch",
  JSON.stringify({ spec: { template: { spec: { nodeSelector: { "hostloop.example/nowhere": nowhere ? "" : null } } } } }),
);

test("a pod that goes is a sentence, and the page goes on", async () => {
  await placeDriver(true);
  const all = await untilProblem(page, /^pod hostloop-\w+ is gone/);
  assert.ok(all.length > 0);
  await goesOn("without-a-driver");
  await examine(page, "live-pod-gone");
  await placeDriver(false);
  await hostloop("rollout", "status", "--timeout=300s", "daemonset/hostloop");
  await until("the end of all problems", () => problems(page), (left) => left.length === 0);
  assert.deepEqual(errors, []);
});

test("each missing right is a sentence, and the page goes on", async () => {
  await create(claim("used"));
  await create(pod("user", "used"));
  const viewer = await visit(variable("HOSTLOOP_LIVE_VIEWER"));
  // Before Kubernetes 1.35, the right is to get.
  for (const right of [/(create|get) pods\/exec in namespace hostloop/, /list nodes/, /list persistentvolumes/]) {
    await untilProblem(viewer.page, new RegExp(`you may not ${right.source}`));
  }
  await until("used in use", () => volumes(viewer.page), (rows) => /published/.test(rows.get("used")?.[1] ?? ""));
  // Without the right to list classes, a claim is known by its provisioner, which comes with a pod.
  await create(pod("another", "seen-by-a-viewer"));
  await goesOn("seen-by-a-viewer", viewer.page);
  await viewer.page.getByText(/^and \d+ more$/).click();
  await viewer.page.getByText(/you may not list volumegroupsnapshots/).first().waitFor();
  await examine(viewer.page, "live-rights");
  assert.deepEqual(viewer.errors, []);
});
