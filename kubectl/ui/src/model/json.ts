/** Reads fields of values that other programs wrote. A field of another type counts as missing. */

export type Path = ReadonlyArray<string | number>;

export type Fields = Record<string, unknown>;

/** What should be a `T`: it has names that `T` has, and any values. */
export type Unchecked<T> = { readonly [K in keyof T]?: unknown };

/** The value at a path, through own properties only. */
export function at(value: unknown, ...path: Path): unknown {
  let here = value;
  for (const step of path) {
    if (typeof here !== "object" || here === null || !Object.hasOwn(here, step)) return undefined;
    here = (here as Fields)[step];
  }
  return here;
}

/** The string at a path, or the empty string. */
export function text(value: unknown, ...path: Path): string {
  const found = at(value, ...path);
  return typeof found === "string" ? found : "";
}

export function number(value: unknown, ...path: Path): number | undefined {
  const found = at(value, ...path);
  return typeof found === "number" && Number.isFinite(found) ? found : undefined;
}

export function list(value: unknown, ...path: Path): unknown[] {
  const found = at(value, ...path);
  return Array.isArray(found) ? found : [];
}

/** The strings in the list at a path. */
export function texts(value: unknown, ...path: Path): string[] {
  return list(value, ...path).filter((item): item is string => typeof item === "string");
}

export function fields(value: unknown, ...path: Path): Fields {
  const found = at(value, ...path);
  return typeof found === "object" && found !== null && !Array.isArray(found) ? (found as Fields) : {};
}
