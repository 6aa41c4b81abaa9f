import assert from "node:assert/strict";
import { test } from "node:test";
import { escapeJson, page, recordingJson, RECORDING } from "../../src/recording/document.ts";
import { History } from "../../src/recording/history.ts";
import { load } from "../../src/recording/load.ts";
import { fileName } from "../../src/recording/save.ts";
import { parse } from "../../src/model/message.ts";
import { rowsOf, stateOf } from "../generator/fold.ts";
import { HOSTILE, hostile, many, severalStates } from "../generator/stories.ts";
import { START } from "../generator/world.ts";

const fill = (history: History, messages: readonly unknown[]) => {
  for (const raw of messages) {
    const message = parse(raw);
    if (message) history.add({ message, raw, size: 100 });
  }
};

test("a full history keeps the newest messages and the state before them", () => {
  const history = new History({ messages: 1000, bytes: 1e9 });
  const { messages } = many(80);
  fill(history, messages);
  assert.ok(history.entries.length <= 1000, String(history.entries.length));
  assert.ok(messages.length > 1500, String(messages.length));
  const kept = stateOf({ messages: history.entries.map((e) => e.raw) });
  // Rows of one second are in another order once the first message of each is gone.
  const words = (state: typeof kept) => rowsOf(state).map((row) => `${row.key} ${row.verdict.word}`).sort();
  assert.deepEqual(words(kept), words(stateOf({ messages })));
});

test("a history has a limit of bytes", () => {
  const history = new History({ messages: 1e9, bytes: 50_000 });
  fill(history, many(40).messages);
  assert.ok(history.bytes <= 50_000, String(history.bytes));
});

test("a full history forgets the map of an image that is gone", () => {
  const history = new History({ messages: 100, bytes: 1e9 });
  const extents = [{ offset: 0, len: 1, physical: 1, shared: false }];
  fill(history, [
    { type: "extents", t: START, node: "n", volume: "gone", extents },
    { type: "extents", t: START, node: "n", volume: "there", extents },
    { type: "extents", t: START, node: "n", volume: "gone", extents: [] },
  ]);
  fill(history, Array.from({ length: 200 }, (_, i) => ({ type: "gap", t: START + i, node: "n", process: "node", lost: 1 })));
  const messages = history.entries.map((e) => e.raw);
  assert.deepEqual([...stateOf({ messages }).extents.keys()], ["there"]);
  assert.ok(!JSON.stringify(messages).includes("gone"));
});

test("times in the history never go back", () => {
  const history = new History();
  fill(history, [
    { type: "problem", t: START + 5, about: "a", text: "" },
    { type: "problem", t: START + 3, about: "b", text: "" },
    { type: "problem", t: START + 9, about: "c", text: "" },
  ]);
  assert.deepEqual(history.entries.map((e) => e.at - START), [5, 5, 9]);
  assert.deepEqual([0, 4, 5, 8, 9].map((t) => history.indexAt(START + t)), [0, 0, 2, 2, 3]);
});

test("a saved recording is read again, whatever its texts are", () => {
  const { messages } = hostile();
  const html = page({ policy: "p", style: "s", program: "x", data: { recording: recordingJson("1", messages) } });
  const json = /id="recording">([^<]*)<\/script>/.exec(html)![1]!;
  assert.ok(!html.includes(HOSTILE.html));
  const loaded = load(json);
  assert.deepEqual(loaded.messages, JSON.parse(JSON.stringify(messages)));
  assert.deepEqual(loaded.problems, []);
});

test("JSON in a page has no end of a script", () => {
  assert.equal(escapeJson('"</script>\u2028\u2029"'), '"\\u003c/script>\\u2028\\u2029"');
});

test("problems of a recording are sentences", () => {
  const cases: [string, RegExp][] = [
    ["{", /is damaged: .*Save it again/],
    ['{"recording":"hostloop.recording/v9","messages":[]}', /format hostloop\.recording\/v9, and this page reads hostloop\.recording\/v1/],
    ['{"messages":[]}', /has no format/],
    [`{"recording":"${RECORDING}"}`, /no list of messages/],
    ["null", /no format/],
  ];
  for (const [json, sentence] of cases) assert.match(load(json).problems.join("\n"), sentence, json);
});

test("another version is shown as far as it is understood", () => {
  const { messages } = severalStates();
  const loaded = load(JSON.stringify({ recording: "hostloop.recording/v2", messages: [{ type: "new" }, ...messages] }));
  assert.equal(rowsOf(stateOf(loaded)).length, 4);
});

test("the file's name has the time of its end", () => {
  assert.equal(fileName(START), "hostloop-2025-11-24-16-00-00.html");
  assert.equal(fileName(Number.NaN), "hostloop-empty.html");
});
