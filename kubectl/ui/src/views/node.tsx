/** One node: its pools, and for each image what the kernel has for it. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { chains, nodes, pools, snapshotBefore, type Chain, type Pool } from "../node/chain.ts";
import { asSegments, bars, changes, segments, totals, type Change, type Segment } from "../node/extents.ts";
import type { State } from "../model/state.ts";
import { age, bytes, count, visible } from "../model/text.ts";
import { Text } from "../parts/name.tsx";
import { Table, type Column } from "../parts/table.tsx";
import { useApp, useWidth } from "../parts/use-engine.ts";
import { visibleRange } from "../parts/window.ts";
import { fragment, type Route } from "../route.ts";
import { colours } from "../node/colours.ts";

const ROW_HEIGHT = 40;
const CHAIN_HEIGHT = 132;
const NARROW_CHAIN_HEIGHT = 260;
const OVERSCAN = 2;

interface Described extends Chain {
  parts: Segment[];
  colour: string;
  /** What has changed since the snapshot before, of a snapshot. */
  since: Since | undefined;
}

interface Since {
  name: string;
  changed: Change[];
}

export function NodeView() {
  const { engine, route, go } = useApp();
  const { state } = engine;
  const all = nodes(state);
  const node = route.node || all[0] || "";
  const report = state.reports.get(node);
  const stamp = `${node} ${report?.t} ${extentsStamp(engine.state.extents)} ${Math.floor(engine.now() / 1e6)}`;
  const described = useMemo((): Described[] => {
    const found = chains(state, node);
    const parts = segments(found.map(({ id, pool, created }) => ({ id, pool, created, extents: state.extents.get(id)?.extents ?? [] })));
    const colour = colours(found.map((chain) => chain.id));
    return found.map((chain) => ({
      ...chain, parts: parts.get(chain.id) ?? [], colour: colour.get(chain.id)!, since: since(state, found, chain),
    }));
  }, [stamp, state]);
  return (
    <section class="view node" aria-labelledby="title">
      <div class="bar">
        <h1 id="title">Node <Text value={node} /></h1>
        {report && <p class="sum">{count(described.length, "image")}, reported {age(report.t, engine.now())} ago</p>}
        {all.length > 1 && (
          <form class="filters" aria-label="Choose a node">
            <label>
              Node
              <select value={node} onChange={(event) => go({ view: "node", node: event.currentTarget.value })}>
                {all.map((name) => <option key={name} value={name}>{visible(name)}</option>)}
              </select>
            </label>
          </form>
        )}
      </div>
      {!report && <p>{node === "" ? "No node is known yet." : "No report of this node has arrived yet."}</p>}
      {pools(state, node).map((pool) => <PoolRoom key={pool.name} pool={pool} />)}
      {report && (
        <>
          <h2>Images and what uses them</h2>
          <p class="note">
            Each bar is an image from its first to its last byte. Blocks that several images share are hatched, in the
            colour of the oldest of these images.
            {described.some((chain) => chain.since) && (
              <> A snapshot is underlined where it differs from the one before it: a backup tool copies that.</>
            )}
          </p>
          <Picture described={described} route={route} />
          <h2>The same as a table</h2>
          <Table
            caption="Images of the node"
            columns={columns(route, described)}
            rows={described}
            rowKey={(chain) => chain.id}
            rowHeight={ROW_HEIGHT}
            empty="The node has no volumes and no snapshots."
          />
        </>
      )}
    </section>
  );
}

/** What has changed between a snapshot and the one before it, if the blocks of both are known. */
function since(state: State, all: readonly Chain[], chain: Chain): Since | undefined {
  const before = snapshotBefore(all, chain);
  const [earlier, later] = [before && state.extents.get(before.id), state.extents.get(chain.id)];
  if (!before || !earlier || !later) return undefined;
  return { name: before.name, changed: changes(earlier.extents, later.extents) };
}

function extentsStamp(extents: ReadonlyMap<string, { t: number }>): number {
  let newest = extents.size;
  for (const { t } of extents.values()) newest = Math.max(newest, t);
  return newest;
}

function PoolRoom({ pool }: { pool: Pool }) {
  const used = Math.max(0, pool.size - pool.free);
  const most = Math.max(pool.size, pool.promised, 1);
  const percent = (n: number) => `${(n / most) * 100}%`;
  return (
    <section class="pool" aria-label={`Pool ${pool.name}`}>
      <h2>
        Pool <Text value={pool.name} /> <small>{pool.kind}, {pool.fs || "no filesystem"}, {pool.state}</small>
      </h2>
      {pool.why !== "" && <p class="why bad"><Text value={pool.why} /></p>}
      <svg class="room" width="100%" height="22" aria-hidden="true">
        <rect class="all" x="0" y="3" width={percent(pool.size)} height="16" rx="3" />
        <rect class="used" x="0" y="3" width={percent(used)} height="16" rx="3" />
        <line class="promised" x1={percent(pool.promised)} x2={percent(pool.promised)} y1="0" y2="22" />
      </svg>
      <dl class="facts">
        <div><dt>Size</dt><dd>{bytes(pool.size)}</dd></div>
        <div><dt>Used</dt><dd>{bytes(used)}</dd></div>
        <div><dt>Free</dt><dd>{bytes(pool.free)}</dd></div>
        <div><dt>Promised</dt><dd>{bytes(pool.promised)}</dd></div>
        {pool.available !== undefined && <div><dt>Room for new volumes</dt><dd>{bytes(pool.available)}</dd></div>}
        {pool.reflinks !== undefined && <div><dt>Shares blocks</dt><dd>{pool.reflinks ? "yes" : "no"}</dd></div>}
        <div><dt>Path</dt><dd><Text value={pool.path} kind="mono" /></dd></div>
      </dl>
    </section>
  );
}

function Picture({ described, route }: { described: readonly Described[]; route: Route }) {
  const [box, width] = useWidth();
  const scroll = useRef<HTMLDivElement | null>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useEffect(() => setHeight(scroll.current?.clientHeight ?? 600), [width]);
  const rowHeight = width > 0 && width < 720 ? NARROW_CHAIN_HEIGHT : CHAIN_HEIGHT;
  const [from, to] = visibleRange(top, height, rowHeight, described.length, OVERSCAN);
  const known = useMemo(() => new Map(described.map((each) => [each.id, each.colour])), [described]);
  return (
    <div
      class="chains"
      ref={scroll}
      tabIndex={0}
      role="region"
      aria-label="Picture of the images; the table below has the same"
      onScroll={() => setTop(scroll.current?.scrollTop ?? 0)}
    >
      <svg class="hidden" width="0" height="0" aria-hidden="true">
        <defs>
          <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
            <rect class="hatch" width="2" height="6" />
          </pattern>
        </defs>
      </svg>
      <div ref={box} class="inner" style={{ height: `${described.length * rowHeight}px` }}>
        {described.slice(from, to).map((chain, i) => (
          <div key={chain.id} class="chain" style={{ top: `${(from + i) * rowHeight}px`, height: `${rowHeight - 8}px` }}>
            <ChainRow chain={chain} known={known} route={route} width={width} />
          </div>
        ))}
      </div>
    </div>
  );
}

function ChainRow({ chain, known, route, width }: { chain: Described; known: ReadonlyMap<string, string>; route: Route; width: number }) {
  const staging = chain.mounts.filter((mount) => mount.staging);
  const published = chain.mounts.filter((mount) => !mount.staging);
  return (
    <>
      <div class="image">
        <a href={fragment({ ...route, view: "life", life: chain.life })}><Text value={chain.name} /></a>
        <span class="second">
          {chain.kind}, {bytes(chain.size)}, {sharing(chain)}{chain.since && <>, <ChangedSince since={chain.since} /></>}{chain.fault?.felt && <>, fault <Text value={chain.fault.words} /></>}{chain.users.length > 0 && <>, used by <Text value={chain.users.join(", ")} /></>}
        </span>
        <ExtentBar chain={chain} known={known} width={Math.max(60, width - 32)} />
      </div>
      <ol class="links" aria-label={`What uses ${visible(chain.name)}`}>
        <Box title="Loop devices" values={chain.loops.map((l) => `${l.device} ${l.direct ? "direct" : "buffered"}${l.readOnly ? " ro" : ""}`)} none="not attached" />
        <Box title="Filesystem" values={staging.map((mount) => `${mount.fs} at ${mount.path}`)} none={chain.format === "raw" ? "raw block" : "not staged"} />
        <Box title="Mounts" values={published.map((mount) => `${mount.kind === "device" ? "device" : mount.fs}${mount.readOnly ? " ro" : ""} at ${mount.path}`)} none="not published" />
        <Box title="Pods" values={[...new Set(published.map((mount) => mount.pod))].filter((pod) => pod !== "")} none="no pod" />
      </ol>
    </>
  );
}

function Box({ title, values, none }: { title: string; values: readonly string[]; none: string }) {
  const more = values.length > 2 ? ` and ${values.length - 2} more` : "";
  return (
    <li class={values.length === 0 ? "none" : ""}>
      <span class="second">{title}</span>
      {values.length === 0 ? none : values.slice(0, 2).map((value) => <Text key={value} value={value} />)}
      {more}
    </li>
  );
}

function ExtentBar({ chain, known, width }: { chain: Described; known: ReadonlyMap<string, string>; width: number }) {
  const drawn = useMemo(() => bars(chain.parts, Math.max(chain.size, 1), width), [chain.parts, chain.size, width]);
  const changed = useMemo(
    () => bars(asSegments(chain.since?.changed ?? []), Math.max(chain.size, 1), width),
    [chain.since, chain.size, width],
  );
  return (
    <svg class="extents" width={width} height="20" aria-hidden="true">
      <rect class="hole" width={width} height="20" rx="3" />
      {drawn.map((bar) => (
        <g key={`${bar.x} ${bar.owner}`}>
          <rect x={bar.x} width={bar.width} height="20" fill={known.get(bar.owner) ?? "gray"} />
          {(bar.shared || bar.hidden) && <rect x={bar.x} width={bar.width} height="20" fill="url(#hatch)" />}
        </g>
      ))}
      {changed.map((bar) => <rect key={bar.x} class="changed" x={bar.x} width={bar.width} y="16" height="4" />)}
    </svg>
  );
}

/** Such as `8 MiB changed since demo/before`. */
function ChangedSince({ since: { name, changed } }: { since: Since }) {
  return <>{bytes(changed.reduce((sum, { len }) => sum + len, 0))} changed since <Text value={name} /></>;
}

function sharing(chain: Described): string {
  if (chain.parts.length === 0) return chain.allocated === undefined ? "no image" : `${bytes(chain.allocated)} on disk`;
  const { own, shared } = totals(chain.parts);
  return `${bytes(own)} of its own, ${bytes(shared)} shared`;
}

function columns(route: Route, described: readonly Described[]): Column<Described>[] {
  const names = new Map(described.map((chain) => [chain.id, chain.name]));
  return [
    {
      name: "Image",
      kind: "grow",
      cell: (chain) => (
        <>
          <i class="swatch" style={{ background: chain.colour }} />
          <a href={fragment({ ...route, view: "life", life: chain.life })}><Text value={chain.name} /></a>
        </>
      ),
    },
    { name: "Kind", kind: "wide", cell: (chain) => chain.kind },
    { name: "Pool", kind: "wide", cell: (chain) => <Text value={chain.pool} /> },
    { name: "Size", kind: "number wide", cell: (chain) => bytes(chain.size) },
    { name: "Own", kind: "number", cell: (chain) => (chain.parts.length === 0 ? "–" : bytes(totals(chain.parts).own)) },
    { name: "Shared", kind: "number", cell: (chain) => (chain.parts.length === 0 ? "–" : bytes(totals(chain.parts).shared)) },
    { name: "Shared with", kind: "grow wide", cell: (chain) => <Text value={sharers(chain, names)} /> },
    { name: "Loop devices", kind: "wide", cell: (chain) => <Text value={chain.loops.map((l) => l.device.replace("/dev/", "")).join(", ") || "–"} /> },
    { name: "Pods", kind: "wide", cell: (chain) => <Text value={[...new Set(chain.mounts.map((m) => m.pod))].filter((p) => p !== "").join(", ") || "–"} /> },
    ...(described.some((chain) => chain.since) ? [CHANGED] : []),
  ];
}

/** Only where there is a snapshot with another one before it. */
const CHANGED: Column<Described> = {
  name: "Changed",
  kind: "grow wide",
  cell: (chain) => (chain.since ? <ChangedSince since={chain.since} /> : "–"),
};

function sharers(chain: Described, names: ReadonlyMap<string, string>): string {
  const ids = new Set(chain.parts.flatMap((part) => part.others));
  const known = [...ids].map((id) => names.get(id) ?? id);
  if (chain.parts.some((part) => part.hidden)) known.push("an image that is not shown");
  return known.join(", ") || "–";
}
