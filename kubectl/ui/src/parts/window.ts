/** Which rows of a long list are drawn. */

/** The first row and the row after the last one, for a scroll position. */
export function visibleRange(
  top: number, height: number, rowHeight: number, rows: number, overscan: number,
): [number, number] {
  const most = Math.ceil(height / rowHeight) + 2 * overscan + 1;
  const from = Math.max(0, Math.min(Math.floor(top / rowHeight) - overscan, rows - most));
  return [from, Math.min(rows, from + most)];
}
