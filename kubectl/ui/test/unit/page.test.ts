import assert from "node:assert/strict";
import { test } from "node:test";
import { visibleRange } from "../../src/parts/window.ts";
import { fragment, parseRoute, tokenOf } from "../../src/route.ts";
import { openSession, recordingOf } from "../../src/stream/session.ts";
import { connect, retryAfter, type Source } from "../../src/stream/source.ts";

test("routes survive the address", () => {
  for (const text of ["", "#view=life&life=claim%3Aa", "#view=node&node=n+1&ns=x", "#text=%3Cb%3E&state=stuck"]) {
    assert.deepEqual(parseRoute(fragment(parseRoute(text))), parseRoute(text), text);
  }
  assert.equal(parseRoute("#view=nonsense").view, "volumes");
  assert.equal(tokenOf("#view=life&token=t"), "t");
  assert.equal(fragment(parseRoute("#view=node&node=n&token=t")), "#view=node&node=n");
});

test("a token is exchanged for a session, which the tab keeps", async () => {
  const stored = new Map<string, string>();
  const kept = { getItem: (name: string) => stored.get(name) ?? null, setItem: (name: string, value: string) => void stored.set(name, value) };
  const asked: string[] = [];
  const answers = (ok: boolean, text: string) => (path: string, init?: RequestInit) => {
    asked.push(`${init?.method ?? "GET"} ${path} ${new Headers(init?.headers).get("x-hostloop-token") ?? ""}`);
    return Promise.resolve({ ok, text: () => Promise.resolve(text) });
  };
  const none = await openSession("", kept, answers(true, ""));
  assert.ok("refused" in none && none.refused.includes("terminal"));
  assert.equal(asked.length, 0);
  assert.deepEqual(await openSession("t", kept, answers(false, "used before")), { refused: "used before" });
  const session = { key: "s", recording: true };
  assert.deepEqual(await openSession("t", kept, answers(true, '{"session":"s","recording":true}')), session);
  // The tab is loaded again: without the token, or with it from the history.
  assert.deepEqual(await openSession("", kept, answers(false, "")), session);
  assert.deepEqual(await openSession("t", kept, answers(false, "used before")), session);
  assert.deepEqual(await recordingOf("s", answers(true, "{}")), { json: "{}" });
  assert.deepEqual(asked.filter((line) => !line.endsWith(" t")), ["GET recording?session=s "]);
  const gone = await openSession("u", { getItem: () => null, setItem: () => {} }, () => Promise.reject(new Error("gone")));
  assert.ok("refused" in gone && gone.refused.includes("does not answer"));
});

test("only visible rows are drawn", () => {
  const cases: [[number, number, number, number, number], [number, number]][] = [
    [[0, 500, 50, 1000, 4], [0, 19]],
    [[5000, 500, 50, 1000, 4], [96, 115]],
    [[49_500, 500, 50, 1000, 4], [981, 1000]],
    [[0, 500, 50, 3, 4], [0, 3]],
    [[0, 500, 50, 0, 4], [0, 0]],
  ];
  for (const [[top, height, row, rows, over], range] of cases) {
    assert.deepEqual(visibleRange(top, height, row, rows, over), range);
  }
});

test("a broken stream is opened again, later and later", () => {
  assert.deepEqual([1, 2, 3, 6, 50].map(retryAfter), [500, 1000, 2000, 10_000, 10_000]);
  const sources: (Source & { closed: boolean })[] = [];
  const make = () => {
    const source = { onopen: null, onmessage: null, onerror: null, closed: false, close: () => { source.closed = true; } } as Source & { closed: boolean };
    sources.push(source);
    return source;
  };
  const heard: string[] = [];
  let again = () => {};
  connect(make, {
    message: (json) => heard.push(json),
    open: () => heard.push("open"),
    cut: (retry) => heard.push(`cut ${retry}`),
  }, (run) => { again = run; });
  sources[0]!.onopen!();
  sources[0]!.onmessage!({ data: "1" });
  sources[0]!.onerror!();
  assert.ok(sources[0]!.closed);
  again();
  sources[1]!.onerror!();
  again();
  sources[2]!.onopen!();
  sources[2]!.onerror!();
  assert.deepEqual(heard, ["open", "1", "cut 500", "cut 1000", "open", "cut 500"]);
});
