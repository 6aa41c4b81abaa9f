import assert from "node:assert/strict";
import { test } from "node:test";
import { Engine } from "../../src/engine.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { many, wholeLife } from "../generator/stories.ts";
import { START } from "../generator/world.ts";

/** Frames until all is applied. */
function settle(engine: Engine): number {
  for (let frames = 1; frames < 1000; frames++) {
    engine.step(performance.now());
    if (engine.idle) return frames;
  }
  throw new Error("the engine never settles");
}

const filled = (messages: readonly unknown[], recorded = false) => {
  const engine = new Engine(recorded, () => {});
  for (const message of messages) engine.receive(JSON.stringify(message));
  return engine;
};

const words = (engine: Engine) => rowsOf(engine.state, engine.now()).map((row) => [row.key, row.verdict.word]);

test("any time of the history is what its messages lead to", () => {
  const { messages } = wholeLife();
  const engine = filled(messages);
  settle(engine);
  const at = (t: number) => stateOf({ messages: engine.history.entries.slice(0, engine.history.indexAt(t)).map((e) => e.raw) });
  for (const seconds of [50, 0.2, 90, 0.1, 94]) {
    const t = START + seconds * 1e6;
    engine.seek(t);
    settle(engine);
    assert.deepEqual(words(engine), rowsOf(at(t), t).map((row) => [row.key, row.verdict.word]), `${seconds} s`);
  }
});

test("what arrives while it is paused is shown when it is live again", () => {
  const { messages } = wholeLife();
  const half = messages.length / 2;
  const engine = filled(messages.slice(0, half));
  settle(engine);
  engine.pause();
  const before = words(engine);
  for (const message of messages.slice(half)) engine.receive(JSON.stringify(message));
  settle(engine);
  assert.deepEqual(words(engine), before);
  engine.live();
  settle(engine);
  assert.deepEqual(words(engine).map(([, word]) => word), ["Deleted"]);
});

test("a long backlog is applied in several frames", () => {
  const engine = filled(many(600).messages);
  // A frame that is late already does the least.
  engine.step(performance.now() - 1000);
  assert.ok(engine.state.messages < 100, String(engine.state.messages));
  settle(engine);
  assert.equal(engine.rows.all().length, 600);
});

test("playing goes forward at its speed and stops at the end", () => {
  const engine = filled(wholeLife().messages, true);
  engine.loaded();
  engine.seek(START);
  engine.speed = 10;
  engine.play();
  engine.step(1000);
  engine.step(2000);
  assert.equal(engine.at, START + 10e6);
  engine.step(60_000);
  assert.deepEqual([engine.mode, engine.at], ["paused", engine.history.end]);
});

test("what is not JSON or not known is counted, and the rest is shown", () => {
  const engine = filled([{ type: "surprise" }, ...wholeLife().messages]);
  engine.receive("{");
  settle(engine);
  assert.equal(engine.unknown, 1);
  assert.match([...engine.problems.values()].join(), /was not JSON/);
  assert.equal(engine.rows.all().length, 1);
});

test("frames come only while there is work", (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  const asked: FrameRequestCallback[] = [];
  Object.assign(globalThis, { requestAnimationFrame: (frame: FrameRequestCallback) => asked.push(frame) });
  t.after(() => Reflect.deleteProperty(globalThis, "requestAnimationFrame"));
  const draw = (frames: number) => {
    for (let i = 0; i < frames; i++) asked.shift()?.(0);
    return asked.length;
  };
  const { messages } = wholeLife();
  const engine = filled(messages);
  engine.run();
  assert.equal(draw(1000), 0);
  assert.ok(engine.idle);
  engine.receive(JSON.stringify({ type: "problem", t: START + 95e6, about: "pods", text: "x" }));
  assert.equal(asked.length, 1, "a message");
  assert.equal(draw(1000), 0);
  t.mock.timers.tick(500);
  assert.equal(asked.length, 1, "the clock");
  assert.equal(draw(1000), 0);
  engine.seek(START);
  engine.play();
  assert.equal(draw(3), 1, "it is playing");
  engine.pause();
  assert.equal(draw(1000), 0);
  // A hidden tab draws no frame.
  engine.live();
  assert.ok(!engine.idle);
  t.mock.timers.tick(5000);
  assert.ok(engine.idle);
});
