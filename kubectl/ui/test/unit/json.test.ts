import assert from "node:assert/strict";
import { test } from "node:test";
import { at, fields, list, number, text, texts } from "../../src/model/json.ts";

test("a field of another type counts as missing", () => {
  const value = JSON.parse('{"s":"x","n":5,"l":["a",1],"o":{"__proto__":"p"},"z":null}') as unknown;
  assert.deepEqual([text(value, "s"), text(value, "n"), text(value, "l"), text(value, "z"), text(value, "s", "length")], ["x", "", "", "", ""]);
  assert.deepEqual([number(value, "n"), number(value, "s"), number({ n: Number.NaN }, "n")], [5, undefined, undefined]);
  assert.deepEqual([list(value, "l"), list(value, "o"), texts(value, "l")], [["a", 1], [], ["a"]]);
  assert.deepEqual([fields(value, "l"), fields(value, "z"), fields(null)], [{}, {}, {}]);
  assert.deepEqual([at(value, "toString"), at({}, "__proto__"), text(value, "o", "__proto__")], [undefined, undefined, "p"]);
});
