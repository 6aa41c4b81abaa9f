/** The timeline of a life: lanes on an axis of time that can be zoomed and moved. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { GROUPS, lanes, type Item, type Tone } from "../life/items.ts";
import {
  around, folded, linear, pan, placeOf, ticks, timeAt, WHOLE, zoom, type Scale, type Window,
} from "../life/scale.ts";
import { layout, marksOf, step, type Placed } from "../life/layout.ts";
import { duration, visible } from "../model/text.ts";
import { useWidth } from "../parts/use-engine.ts";

interface Props {
  all: readonly Item[];
  range: [number, number];
  chosen: Item | undefined;
  onChoose: (id: string) => void;
  life: string;
  /** The meaning of each colour. */
  legend?: readonly (readonly [Tone, string])[];
  /** Whether long times are shortened at first. */
  folds?: boolean;
}

const ZOOM = 2;

const LEGEND: readonly (readonly [Tone, string])[] = [
  ["step", "step"], ["use", "use"], ["ok", "succeeded"], ["busy", "under way"], ["bad", "failed"], ["wait", "waits"],
  ["object", "object exists"],
];

export function Timeline({ all, range, chosen, onChoose, life, legend = LEGEND, folds = true }: Props) {
  const [box, width] = useWidth();
  // Times, so that what is visible stays while the life goes on; undefined for all of it.
  const [view, setView] = useState<readonly [number, number] | undefined>(undefined);
  const [fold, setFold] = useState(folds);
  const drag = useRef<{ x: number; window: Window; moved: boolean } | undefined>(undefined);
  useEffect(() => setView(undefined), [life, fold]);
  const found = useMemo(() => lanes(all), [all]);
  const scale = useMemo<Scale>(
    () => (fold ? folded(range[0], range[1], marksOf(all)) : linear(range[0], range[1])),
    [all, range[0], range[1], fold],
  );
  const window = windowOf(scale, view);
  const move = (change: (window: Window) => Window) => setView((now) => {
    const next = change(windowOf(scale, now));
    return next.from <= 0 && next.to >= 1 ? undefined : [timeAt(scale, next.from), timeAt(scale, next.to)];
  });
  const narrow = width < 640;
  const left = narrow ? 0 : 168;
  const plot = Math.max(width - left - 8, 10);
  const drawn = useMemo(() => layout(found, scale, window, plot, narrow), [found, scale, window.from, window.to, plot, narrow]);
  // A wheel listener of Preact would be passive, and the page would zoom too.
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      const at = (event.clientX - element.getBoundingClientRect().left - left) / plot;
      move((w) => event.ctrlKey
        ? zoom(w, Math.exp(-event.deltaY / 200), w.from + at * (w.to - w.from))
        : pan(w, (event.deltaY || event.deltaX) / plot));
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => element.removeEventListener("wheel", onWheel);
  }, [left, plot, scale]);

  const closer = (factor: number) =>
    move((w) => zoom(w, factor, chosen ? placeOf(scale, (chosen.t + chosen.end) / 2) : (w.from + w.to) / 2));
  const show = (item: Item | undefined) => item && move(() => around(scale, item.t, Math.max(item.end, item.t + 100)));
  const choose = (item: Item | undefined) => {
    if (!item) return;
    onChoose(item.id);
    const place = placeOf(scale, item.t);
    if (place < window.from || place > window.to) show(item);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const keys: Record<string, () => void> = {
      "+": () => closer(ZOOM),
      "=": () => closer(ZOOM),
      "-": () => closer(1 / ZOOM),
      "0": () => move(() => WHOLE),
      Enter: () => show(chosen),
      ArrowRight: () => (event.shiftKey ? move((w) => pan(w, 0.2)) : choose(step(found, chosen, 1, 0))),
      ArrowLeft: () => (event.shiftKey ? move((w) => pan(w, -0.2)) : choose(step(found, chosen, -1, 0))),
      ArrowDown: () => choose(step(found, chosen, 0, 1)),
      ArrowUp: () => choose(step(found, chosen, 0, -1)),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  };
  const onPointerMove = (event: PointerEvent) => {
    const start = drag.current;
    if (!start) return;
    const moved = event.clientX - start.x;
    if (Math.abs(moved) > 3) start.moved = true;
    if (start.moved) move(() => pan(start.window, -moved / plot));
  };
  const visibleFrom = timeAt(scale, window.from);
  const visibleTo = timeAt(scale, window.to);
  return (
    <figure class="timeline">
      <figcaption>
        <h2>Timeline</h2>
        <span class="buttons" role="group" aria-label="Zoom">
          <button type="button" onClick={() => closer(ZOOM)} aria-label="Closer">+</button>
          <button type="button" onClick={() => closer(1 / ZOOM)} aria-label="Farther">−</button>
          <button type="button" onClick={() => move((w) => pan(w, -0.3))} aria-label="Earlier">◀</button>
          <button type="button" onClick={() => move((w) => pan(w, 0.3))} aria-label="Later">▶</button>
          <button type="button" onClick={() => move(() => WHOLE)}>All</button>
          <button type="button" onClick={() => show(chosen)} disabled={!chosen}>Chosen</button>
        </span>
        <label class="check">
          <input type="checkbox" checked={fold} onChange={(event) => setFold(event.currentTarget.checked)} />
          shorten long times
        </label>
        <span class="span">{duration(visibleTo - visibleFrom)} visible</span>
      </figcaption>
      <div
        ref={box}
        class="plot"
        tabIndex={0}
        role="application"
        aria-label="Timeline. Arrow keys choose an item, plus and minus zoom, zero shows all. The table below has the same items."
        onKeyDown={onKeyDown}
        onPointerDown={(event) => {
          drag.current = { x: event.clientX, window, moved: false };
        }}
        onPointerMove={onPointerMove}
        onPointerUp={() => setTimeout(() => (drag.current = undefined))}
        onPointerLeave={() => (drag.current = undefined)}
        onDblClick={() => show(chosen)}
      >
        {width > 0 && (
          <svg width={width} height={drawn.height + 22} aria-hidden="true">
            <Axis scale={scale} window={window} left={left} width={plot} height={drawn.height} />
            {drawn.lanes.map((lane) => (
              <g key={lane.key} transform={`translate(0 ${lane.y})`}>
                {lane.heading !== "" && <text class="group" x={narrow ? 2 : 4} y={13}>{lane.heading}</text>}
                <text class="lane" x={narrow ? 2 : 12} y={lane.labelY}>{short(lane.title, narrow ? 60 : 22)}</text>
                <svg x={left} y={lane.barY} width={plot} height={18} overflow="hidden">
                  {lane.placed.map((placed) => (
                    <Mark
                      key={placed.item.id}
                      placed={placed}
                      chosen={placed.item.id === chosen?.id}
                      onClick={() => !drag.current?.moved && onChoose(placed.item.id)}
                    />
                  ))}
                </svg>
              </g>
            ))}
          </svg>
        )}
      </div>
      <ul class="legend" aria-label="Colours">
        {legend.map(([tone, word]) => <li key={tone}><i class={`tone-${tone}`} />{word}</li>)}
      </ul>
    </figure>
  );
}

function windowOf(scale: Scale, view: readonly [number, number] | undefined): Window {
  return view ? { from: placeOf(scale, view[0]), to: placeOf(scale, view[1]) } : WHOLE;
}

function short(name: string, most: number): string {
  const shown = visible(name);
  return shown.length > most ? `${shown.slice(0, most - 1)}…` : shown;
}

function Axis({ scale, window, left, width, height }: { scale: Scale; window: Window; left: number; width: number; height: number }) {
  return (
    <g class="axis" transform={`translate(${left} 0)`}>
      {ticks(scale, window, width, 76).map((tick) => (
        <g key={tick.t}>
          <line x1={tick.x} x2={tick.x} y1={0} y2={height} />
          <text x={tick.x} y={height + 15}>{duration(tick.label)}</text>
        </g>
      ))}
    </g>
  );
}

const GROUP_NAMES = new Map(GROUPS.map(({ group, title }) => [group, title]));

function Mark({ placed, chosen, onClick }: { placed: Placed; chosen: boolean; onClick: () => void }) {
  const { item, x, width, label } = placed;
  const kind = `tone-${item.tone}${chosen ? " chosen" : ""}`;
  if (item.moment) {
    return (
      <path class={`moment ${kind}`} d={`M${x - 5} 9L${x} 4L${x + 5} 9L${x} 14Z`} onClick={onClick}>
        <title>{title(item)}</title>
      </path>
    );
  }
  return (
    <g class={kind} onClick={onClick}>
      <rect x={x} width={width} {...heightOf(item)} rx={2} />
      {label !== "" && <text x={Math.max(x, 0) + 4} y={13}>{label}</text>}
      <title>{title(item)}</title>
    </g>
  );
}

/** The place of a bar in its lane. */
function heightOf({ detail }: Item): { y: number; height: number } {
  if (detail.is === "lifetime") return { y: 7, height: 4 };
  const height = detail.is === "written" ? Math.max(1, Math.round(16 * detail.share)) : 16;
  return { y: 17 - height, height };
}

function title(item: Item): string {
  const how = item.moment ? "" : ` ${duration(item.end - item.t)}`;
  return visible(`${GROUP_NAMES.get(item.group)}: ${item.label}${how}${item.outcome === "" ? "" : ` – ${item.outcome}`}`);
}
