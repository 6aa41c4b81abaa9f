/** A colour for each image. Neighbours differ clearly: their hues are a golden angle apart. */

const GOLDEN_ANGLE = 137.508;

export function colours(ids: readonly string[]): Map<string, string> {
  return new Map(ids.map((id, i) => [id, `hsl(${Math.round((205 + i * GOLDEN_ANGLE) % 360)} 58% 52%)`]));
}
