/** A table that draws only its visible rows, for tables of any length. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { visibleRange } from "./window.ts";

export interface Column<Row> {
  name: string;
  cell: (row: Row) => ComponentChildren;
  /** A class for the column: `number`, `wide` (hidden on narrow screens), `grow`. */
  kind?: string;
}

interface Props<Row> {
  caption: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  rowHeight: number;
  rowClass?: (row: Row) => string;
  /** What stands instead of rows if there are none. */
  empty: string;
}

const OVERSCAN = 4;
/** Of a short list all rows are drawn, and the page scrolls instead of the table. */
const SHORT = 30;

export function Table<Row>({ caption, columns, rows, rowKey, rowHeight, rowClass, empty }: Props<Row>) {
  const box = useRef<HTMLDivElement | null>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const focus = useRef<number | undefined>(undefined);
  const [, setMoves] = useState(0);
  const short = rows.length <= SHORT;
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    setHeight(element.clientHeight);
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const [from, to] = short ? [0, rows.length] : visibleRange(top, height, rowHeight, rows.length, OVERSCAN);
  useLayoutEffect(() => {
    if (focus.current === undefined) return;
    const target = box.current?.querySelector<HTMLElement>(`[data-row="${focus.current}"] a, [data-row="${focus.current}"] button`);
    if (target) {
      focus.current = undefined;
      target.focus({ preventScroll: true });
    }
  });
  const onKeyDown = (event: KeyboardEvent) => {
    const element = box.current;
    const row = (event.target as HTMLElement).closest("[data-row]");
    if (!row || !element) return;
    const page = Math.max(1, Math.floor(height / rowHeight) - 1);
    const moves: Record<string, number> = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length,
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const index = Math.min(rows.length - 1, Math.max(0, Number(row.getAttribute("data-row")) + move));
    focus.current = index;
    const y = index * rowHeight;
    if (!short) {
      if (y < element.scrollTop) element.scrollTop = y;
      else if (y + 2 * rowHeight > element.scrollTop + element.clientHeight) {
        element.scrollTop = y + 2 * rowHeight - element.clientHeight;
      }
    }
    setTop(element.scrollTop);
    setMoves((count) => count + 1);
  };
  return (
    <div
      class={`table${short ? " short" : ""}`}
      ref={box}
      tabIndex={short ? undefined : 0}
      role={short ? undefined : "region"}
      aria-label={short ? undefined : caption}
      onScroll={() => setTop(box.current?.scrollTop ?? 0)}
      onKeyDown={onKeyDown}
    >
      <table aria-rowcount={rows.length + 1}>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => <th scope="col" key={column.name} class={column.kind}>{column.name}</th>)}
          </tr>
        </thead>
        <tbody>
          {from > 0 && <Spacer height={from * rowHeight} columns={columns.length} />}
          {rows.slice(from, to).map((row, i) => (
            <tr
              key={rowKey(row)}
              aria-rowindex={from + i + 2}
              data-row={from + i}
              class={rowClass?.(row)}
              style={{ height: `${rowHeight}px` }}
            >
              {columns.map((column) => <td key={column.name} class={column.kind}>{column.cell(row)}</td>)}
            </tr>
          ))}
          {to < rows.length && <Spacer height={(rows.length - to) * rowHeight} columns={columns.length} />}
        </tbody>
      </table>
      {rows.length === 0 && <p class="empty">{empty}</p>}
    </div>
  );
}

function Spacer({ height, columns }: { height: number; columns: number }) {
  return (
    <tr aria-hidden="true" style={{ height: `${height}px` }}>
      <td colSpan={columns} class="spacer" />
    </tr>
  );
}
