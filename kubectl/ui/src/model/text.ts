/** Text for people: sizes, durations, ages, and names that other programs chose. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** Bytes to three figures in the largest binary unit: `1.50 GiB`, `512 MiB`. */
export function bytes(n: number): string {
  let power = n < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log2(n) / 10));
  // 1023.9 KiB would be printed as 1024 KiB.
  if (n / 1024 ** power >= 999.5 && power + 1 < UNITS.length) power += 1;
  return `${figures(n / 1024 ** power)} ${UNITS[power]}`;
}

function figures(value: number): string {
  if (Math.abs(value - Math.round(value)) < 0.005) return value.toFixed(0);
  if (value < 9.995) return value.toFixed(2);
  return value.toFixed(value < 99.95 ? 1 : 0);
}

/** A duration in microseconds: `12 µs`, `3.40 ms`, `1.25 s`, `2 min 5 s`, `3 h 20 min`, `4 d 2 h`. */
export function duration(us: number): string {
  if (us < 0) return `−${duration(-us)}`;
  if (us < 999.5) return `${Math.round(us)} µs`;
  if (us < 999_500) return `${figures(us / 1e3)} ms`;
  if (us < 59_950_000) return `${figures(us / 1e6)} s`;
  const s = Math.round(us / 1e6);
  if (s < 3600) return two(s, 60, "min", 1, "s");
  if (s < 86_400) return two(s, 3600, "h", 60, "min");
  return two(s, 86_400, "d", 3600, "h");
}

function two(s: number, large: number, largeName: string, small: number, smallName: string): string {
  const rest = Math.floor((s % large) / small);
  return `${Math.floor(s / large)} ${largeName}${rest === 0 ? "" : ` ${rest} ${smallName}`}`;
}

/** How long ago a time was, roughly: `12 s`, `5 min`, `3 h`, `40 d`. */
export function age(then: number, now: number): string {
  const s = Math.max(0, Math.floor((now - then) / 1e6));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86_400)} d`;
}

/** The time of day in the reader's zone, with milliseconds. */
export function clock(t: number): string {
  const date = new Date(t / 1e3);
  if (Number.isNaN(date.getTime())) return "unknown";
  const pad = (n: number, digits = 2) => String(n).padStart(digits, "0");
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${time}.${pad(date.getMilliseconds(), 3)}`;
}

/** A number with its noun: `1 volume`, `1,000 volumes`. */
export function count(n: number, noun: string): string {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** Longest text that is shown in one place. Errors of other programs have no limit. */
const LONGEST = 2000;

/**
 * Text from other programs, safe to read: control characters, those that change the direction of writing
 * and those without a width are shown by their numbers, as the terminal does, and long text is cut.
 */
export function visible(value: string): string {
  const cut = value.length > LONGEST ? `${value.slice(0, LONGEST)}… (${value.length} characters)` : value;
  return cut.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu,
    (c) => `⟨U+${c.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

const SUFFIXES: ReadonlyMap<string, number> = new Map([
  ["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["P", 1e15], ["E", 1e18],
  ["Ki", 2 ** 10], ["Mi", 2 ** 20], ["Gi", 2 ** 30], ["Ti", 2 ** 40], ["Pi", 2 ** 50], ["Ei", 2 ** 60],
]);

/** A Kubernetes quantity in bytes, such as `1Gi`. */
export function quantity(value: string): number | undefined {
  const match = /^(\d+(?:\.\d*)?|\.\d+)(?:e(\d{1,2})|([A-Za-z]{0,2}))$/.exec(value);
  if (!match) return undefined;
  const factor = match[2] === undefined ? SUFFIXES.get(match[3] ?? "") : 10 ** Number(match[2]);
  return factor === undefined ? undefined : Number(match[1]) * factor;
}

/** An RFC 3339 time, as Kubernetes writes it, in microseconds since the epoch. */
export function time(value: string): number | undefined {
  const match = /^(.*T\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)$/.exec(value);
  if (!match) return undefined;
  const ms = Date.parse(`${match[1]}${match[3]}`);
  if (Number.isNaN(ms)) return undefined;
  return ms * 1e3 + Number((match[2] ?? "").padEnd(6, "0").slice(0, 6));
}
