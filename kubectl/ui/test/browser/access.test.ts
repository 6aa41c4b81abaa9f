import assert from "node:assert/strict";
import { test } from "node:test";
import { allLives } from "../../src/model/lives.ts";
import { stateOf } from "../generator/fold.ts";
import { severalStates, wholeLife } from "../generator/stories.ts";
import { violations } from "./axe.ts";
import { eventually, open, picture } from "./harness.ts";

const world = wholeLife(severalStates());
const life = encodeURIComponent(allLives(stateOf(world)).find((key) => key.startsWith("claim:"))!);
const VIEWS = {
  volumes: "", life: `&view=life&life=${life}`, node: "&view=node&node=node-1", cluster: "&view=cluster", nothing: "&view=life",
};
const SIZES = { phone: { width: 360, height: 740 }, desk: { width: 1280, height: 800 }, wall: { width: 3840, height: 2160 } };

for (const [view, at] of Object.entries(VIEWS)) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`axe finds nothing in ${view}, ${colorScheme}`, async () => {
      const { page, errors } = await open(world.messages, { colorScheme }, at);
      if (view === "life") {
        await page.getByRole("application").focus();
        await page.keyboard.press("ArrowRight");
      }
      assert.deepEqual(await violations(page), []);
      await picture(page, `axe-${view}-${colorScheme}`);
      assert.deepEqual(errors, []);
    });
  }
  test(`${view} fits a phone and a wall`, async () => {
    for (const [name, viewport] of Object.entries(SIZES)) {
      const { page } = await open(world.messages, { viewport }, at);
      const width = await page.evaluate(() => Math.max(document.documentElement.scrollWidth, document.getElementById("main")!.scrollWidth));
      await picture(page, `size-${view}-${name}`);
      assert.ok(width <= viewport.width, `${name}: ${width} pixels`);
      if (name === "phone") assert.deepEqual(await violations(page), []);
    }
  });
}

test("each view has its landmarks", async () => {
  const { page } = await open(world.messages);
  for (const role of ["banner", "navigation", "main", "contentinfo"] as const) {
    await eventually(async () => assert.equal(await page.getByRole(role).count(), 1, role));
  }
});
