import assert from "node:assert/strict";
import { test } from "node:test";
import { Engine } from "../../src/engine.ts";
import { wholeLife } from "../generator/stories.ts";

test("what a server sends again after a cut is there once", () => {
  const { messages } = wholeLife();
  const texts = messages.map((message) => JSON.stringify(message));
  const engine = new Engine(false, () => {});
  const half = 20;
  for (const text of texts.slice(0, half)) engine.receive(text);
  assert.equal(engine.history.entries.length, half);
  for (let i = 0; i < 2; i++) {
    engine.repeats.resume();
    for (const text of texts) engine.receive(text);
    assert.equal(engine.history.entries.length, texts.length);
  }
});

test("a message with the time of the last one is new if its text is", () => {
  const engine = new Engine(false, () => {});
  const problem = (about: string, t: number) => JSON.stringify({ type: "problem", t, about, text: "x" });
  engine.receive(problem("a", 10e6));
  engine.repeats.resume();
  for (const [about, t] of [["a", 10e6], ["b", 10e6], ["late", 9e6], ["old", 1e6], ["new", 11e6]] as const) engine.receive(problem(about, t));
  assert.deepEqual(engine.history.entries.map(({ message }) => "about" in message && message.about), ["a", "b", "late", "new"]);
});

test("another process of the server begins again", () => {
  const engine = new Engine(false, () => {});
  const hello = (now: number) => JSON.stringify({ type: "hello", stream: "hostloop.ui/v1", now });
  engine.receive(hello(50e6));
  engine.repeats.resume();
  engine.receive(hello(40e6));
  engine.receive(JSON.stringify({ type: "problem", t: 41e6, about: "a", text: "x" }));
  assert.equal(engine.history.entries.length, 3);
});
