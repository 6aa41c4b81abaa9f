import assert from "node:assert/strict";
import { test } from "node:test";
import { visibleRange } from "../../src/parts/window.ts";
import { fragment, parseRoute } from "../../src/route.ts";
import { connect, retryAfter, type Source } from "../../src/stream/source.ts";

test("routes survive the address", () => {
  for (const text of ["", "#view=life&life=claim%3Aa&token=t", "#view=node&node=n+1&ns=x", "#text=%3Cb%3E&state=stuck"]) {
    assert.deepEqual(parseRoute(fragment(parseRoute(text))), parseRoute(text), text);
  }
  assert.equal(parseRoute("#view=nonsense").view, "volumes");
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
