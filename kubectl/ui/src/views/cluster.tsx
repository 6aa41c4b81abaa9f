/** The cluster: nodes, leader, leases, placement, and charts of the metrics. */

import { useMemo } from "preact/hooks";
import { expired, leases, nodeRows, type LeaseRow, type NodeRow } from "../cluster/nodes.ts";
import { charts } from "../cluster/series.ts";
import type { Row } from "../model/rows.ts";
import type { Span } from "../model/state.ts";
import { age, bytes, clock } from "../model/text.ts";
import { ChartFigure } from "../parts/chart.tsx";
import { StateWord, Text } from "../parts/name.tsx";
import { Table, type Column } from "../parts/table.tsx";
import { useApp } from "../parts/use-engine.ts";
import { fragment, type Route } from "../route.ts";

const ROW_HEIGHT = 40;
/** Charts are small pictures; more than these help no reader. */
const MOST_CHARTS = 48;

export function Cluster() {
  const { engine, route } = useApp();
  const { state } = engine;
  const now = engine.now();
  const beat = Math.floor(now / 1e6);
  const found = useMemo(
    () => ({ nodes: nodeRows(state), leases: leases(state), charts: charts(state).slice(0, MOST_CHARTS) }),
    [state, beat],
  );
  const lost = useMemo(() => engine.rows.all().filter(isUnplaced), [engine.rows.version]);
  const best = found.nodes.find((node) => node.state === "ready" && node.room !== undefined);
  return (
    <section class="view cluster" aria-labelledby="title">
      <div class="bar"><h1 id="title">Cluster</h1></div>
      <h2>Nodes</h2>
      <Table
        caption="Nodes"
        columns={nodeColumns(route, now)}
        rows={found.nodes}
        rowKey={(node) => node.name}
        rowHeight={ROW_HEIGHT}
        empty="No node is known yet."
      />
      <h2>Placement</h2>
      <p>
        {best
          ? <>The next claim with immediate binding goes to <strong><Text value={best.name} /></strong>, which has room for {bytes(best.room!)}.</>
          : "Where the next claim would go is not known: no ready node reports its room."}
      </p>
      {lost.length > 0 && (
        <>
          <h3>Claims that go nowhere</h3>
          <Table
            caption="Claims that go nowhere"
            columns={lostColumns(route)}
            rows={lost}
            rowKey={(row) => row.key}
            rowHeight={ROW_HEIGHT}
            empty=""
          />
        </>
      )}
      <h2>Leader and leases</h2>
      <Table
        caption="Leases"
        columns={leaseColumns(now)}
        rows={found.leases}
        rowKey={(lease) => lease.name}
        rowHeight={ROW_HEIGHT}
        empty="No lease is known."
      />
      {state.leaseChanges.length > 0 && (
        <>
          <h3>Leases acquired and lost</h3>
          <Table
            caption="Leases acquired and lost"
            columns={CHANGE_COLUMNS}
            rows={state.leaseChanges.toReversed()}
            rowKey={(change) => change.key}
            rowHeight={ROW_HEIGHT}
            empty=""
          />
        </>
      )}
      <h2>Rates and queues</h2>
      {found.charts.length === 0 && <p>No metrics have arrived yet.</p>}
      <div class="charts">{found.charts.map((chart) => <ChartFigure key={chart.name} chart={chart} />)}</div>
    </section>
  );
}

const isUnplaced = (row: Row) => row.kind === "claim" && row.node === "" && row.verdict.stuck;

function nodeColumns(route: Route, now: number): Column<NodeRow>[] {
  return [
    { name: "Node", kind: "grow", cell: (node) => <a href={fragment({ ...route, view: "node", node: node.name })}><Text value={node.name} /></a> },
    { name: "State", cell: (node) => <StateWord tone={node.state === "ready" ? "good" : node.state === "unknown" ? "gone" : "bad"} word={node.state} /> },
    { name: "Room", kind: "number", cell: (node) => (node.room === undefined ? "–" : bytes(node.room)) },
    { name: "Free", kind: "number wide", cell: (node) => (node.size === 0 ? "–" : bytes(node.free)) },
    { name: "Promised", kind: "number wide", cell: (node) => (node.size === 0 ? "–" : bytes(node.promised)) },
    { name: "Size", kind: "number wide", cell: (node) => (node.size === 0 ? "–" : bytes(node.size)) },
    { name: "Volumes", kind: "number wide", cell: (node) => node.volumes },
    { name: "Report", kind: "number wide", cell: (node) => (node.reported === undefined ? "none" : `${age(node.reported, now)} ago`) },
  ];
}

function leaseColumns(now: number): Column<LeaseRow>[] {
  return [
    { name: "Lease", kind: "grow", cell: (lease) => <Text value={lease.name} /> },
    { name: "Holder", kind: "grow", cell: (lease) => <Text value={lease.holder || "none"} /> },
    { name: "State", cell: (lease) => (expired(lease, now) ? <StateWord tone="bad" word="expired" /> : <StateWord tone="good" word="held" />) },
    { name: "Renewed", kind: "number wide", cell: (lease) => (lease.renewed === undefined ? "–" : `${age(lease.renewed, now)} ago`) },
    { name: "Changes of holder", kind: "number wide", cell: (lease) => lease.transitions },
  ];
}

const CHANGE_COLUMNS: readonly Column<Span>[] = [
  { name: "Time", cell: (change) => clock(change.t) },
  { name: "Process", kind: "grow", cell: (change) => <Text value={change.node === "" ? change.process : `${change.process} at ${change.node}`} /> },
  { name: "What", cell: (change) => <Text value={change.name} /> },
  { name: "Lease", kind: "grow wide", cell: (change) => <Text value={change.about || change.trace} /> },
];

function lostColumns(route: Route): Column<Row>[] {
  return [
    { name: "Claim", kind: "grow", cell: (row) => <a href={fragment({ ...route, view: "life", life: row.key })}><Text value={`${row.namespace}/${row.name}`} /></a> },
    { name: "Reason", kind: "grow", cell: (row) => <Text value={row.verdict.reason} /> },
  ];
}
