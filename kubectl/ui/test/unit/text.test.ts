import assert from "node:assert/strict";
import { test } from "node:test";
import { age, bytes, count, duration, quantity, time, visible } from "../../src/model/text.ts";

test("bytes have three figures", () => {
  const cases: [number, string][] = [
    [0, "0 B"], [1, "1 B"], [1000, "0.98 KiB"], [1024, "1 KiB"], [1536, "1.50 KiB"], [1_048_575, "1 MiB"],
    [512 * 2 ** 20, "512 MiB"], [12_900_000, "12.3 MiB"], [3 * 2 ** 30, "3 GiB"],
  ];
  for (const [n, shown] of cases) assert.equal(bytes(n), shown, String(n));
});

test("durations go from microseconds to days", () => {
  const cases: [number, string][] = [
    [0, "0 µs"], [12, "12 µs"], [999.6, "1 ms"], [3400, "3.40 ms"], [48_000, "48 ms"], [999_600, "1 s"], [1_250_000, "1.25 s"],
    [59_960_000, "1 min"], [125e6, "2 min 5 s"], [3600e6, "1 h"], [12_000e6, "3 h 20 min"], [90 * 3600e6, "3 d 18 h"], [-5000, "−5 ms"],
  ];
  for (const [us, shown] of cases) assert.equal(duration(us), shown, String(us));
});

test("ages are rough", () => {
  const cases: [number, string][] = [[0, "0 s"], [119, "119 s"], [120, "2 min"], [7200, "2 h"], [3 * 86_400, "3 d"], [-5, "0 s"]];
  for (const [s, shown] of cases) assert.equal(age(0, s * 1e6), shown, String(s));
});

test("counts have a noun", () => {
  assert.equal(count(1, "volume"), "1 volume");
  assert.equal(count(1000, "volume"), "1,000 volumes");
});

test("quantities of Kubernetes", () => {
  const cases: [string, number | undefined][] = [
    ["1Gi", 2 ** 30], ["1.5Gi", 1.5 * 2 ** 30], ["10", 10], ["5k", 5000], ["1e3", 1000], ["1E", 1e18], ["1Ki", 1024],
    ["", undefined], ["Gi", undefined], ["1Xi", undefined], ["-1", undefined],
  ];
  for (const [text, n] of cases) assert.equal(quantity(text), n, text);
});

test("times of Kubernetes", () => {
  const cases: [string, number | undefined][] = [
    ["1970-01-01T00:00:01Z", 1e6], ["1970-01-01T00:00:00.000250Z", 250], ["1970-01-01T01:00:00+01:00", 0],
    ["1970-01-01T00:00:00.5Z", 500_000], ["yesterday", undefined], ["", undefined],
  ];
  for (const [text, us] of cases) assert.equal(time(text), us, text);
});

test("text of others is shown, not obeyed", () => {
  const cases: [string, string][] = [
    ["plain", "plain"],
    ["a\u202eb", "a⟨U+202E⟩b"],
    ["a\u0000\u001bb", "a⟨U+0000⟩⟨U+001B⟩b"],
    ["a\u009b2Jb\u007f", "a⟨U+009B⟩2Jb⟨U+007F⟩"],
    ["da\u00adta\u200b\u180e\ufff9\ufeff", "da⟨U+00AD⟩ta⟨U+200B⟩⟨U+180E⟩⟨U+FFF9⟩⟨U+FEFF⟩"],
    ["a\u{e0041}b", "a⟨U+E0041⟩b"],
    ["two\nlines\t😀", "two\nlines\t😀"],
    ["<b>", "<b>"],
    ["x".repeat(2001), `${"x".repeat(2000)}… (2001 characters)`],
  ];
  for (const [value, shown] of cases) assert.equal(visible(value), shown);
});
