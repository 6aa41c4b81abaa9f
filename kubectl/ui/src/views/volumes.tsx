/** All claims, snapshots and inline volumes, those that are stuck first. */

import { useMemo } from "preact/hooks";
import { STEPS, type Progress } from "../life/steps.ts";
import { choices, select, type Row } from "../model/rows.ts";
import { age, bytes, count, visible } from "../model/text.ts";
import { StateWord, Text } from "../parts/name.tsx";
import { Table, type Column } from "../parts/table.tsx";
import { useApp, type App } from "../parts/use-engine.ts";
import { fragment } from "../route.ts";

const ROW_HEIGHT = 52;

export function Volumes() {
  const app = useApp();
  const { engine, route, go } = app;
  const { filter } = route;
  const all = useMemo(() => engine.rows.all(), [engine.rows.version]);
  const rows = useMemo(() => select(all, filter), [all, filter]);
  const stuck = useMemo(() => all.filter((row) => row.verdict.stuck).length, [all]);
  const set = (change: Partial<typeof filter>) => go({ filter: { ...filter, ...change } });
  const now = engine.now();
  return (
    <section class="view volumes" aria-labelledby="title">
      <div class="bar">
        <h1 id="title">Volumes</h1>
        <p class="sum">
          {count(all.length, "volume")}
          {rows.length === all.length ? "" : `, ${rows.length.toLocaleString("en")} shown`}
          {", "}
          <span class={stuck > 0 ? "bad" : ""}>{stuck} stuck</span>
        </p>
        <form class="filters" role="search" aria-label="Filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Text
            <input
              type="search"
              value={filter.text}
              placeholder="name, ID, node, state"
              onInput={(event) => set({ text: event.currentTarget.value })}
            />
          </label>
          <Choice name="Namespace" value={filter.namespace} options={choices(all, "namespace")} onChange={(namespace) => set({ namespace })} />
          <Choice name="Node" value={filter.node} options={choices(all, "node")} onChange={(node) => set({ node })} />
          <Choice name="State" value={filter.state} options={["stuck", "busy", "live", "deleted"]} onChange={(state) => set({ state })} />
        </form>
      </div>
      <Table
        caption="Volumes"
        columns={columns(app, now)}
        rows={rows}
        rowKey={(row) => row.key}
        rowHeight={ROW_HEIGHT}
        rowClass={(row) => row.verdict.tone}
        empty={all.length === 0 ? "No volumes yet. A claim appears here as soon as it is created." : "No volume passes the filters."}
      />
    </section>
  );
}

function columns(app: App, now: number): Column<Row>[] {
  return [
    {
      name: "Name",
      kind: "grow",
      cell: (row) => (
        <>
          <a href={fragment({ ...app.route, view: "life", life: row.key })}><Text value={row.name} /></a>
          <span class="second">{row.label}{row.namespace === "" ? "" : <> in <Text value={row.namespace} /></>}</span>
        </>
      ),
    },
    {
      name: "State",
      kind: "grow",
      cell: (row) => (
        <>
          <StateWord tone={row.verdict.tone} word={row.verdict.word} fault={row.fault} />
          <span class="second reason"><Text value={row.verdict.reason || (row.fault?.felt ? row.fault.words : "")} /></span>
        </>
      ),
    },
    { name: "Life", kind: "wide", cell: (row) => <Pipeline progress={row.progress} /> },
    {
      name: "Node",
      kind: "wide",
      cell: (row) => row.node === "" ? "–" : <a href={fragment({ ...app.route, view: "node", node: row.node })}><Text value={row.node} /></a>,
    },
    { name: "Size", kind: "number wide", cell: (row) => (row.size === undefined ? "–" : bytes(row.size)) },
    { name: "Used", kind: "number wide", cell: (row) => (row.used === undefined ? "–" : bytes(row.used)) },
    { name: "Age", kind: "number wide", cell: (row) => (row.created === 0 ? "–" : age(row.created, now)) },
  ];
}

/** The steps of a life as small squares. */
function Pipeline({ progress }: { progress: readonly Progress[] }) {
  if (progress.length === 0) return <>–</>;
  const reached = progress.findLastIndex((p) => p !== "none");
  const last = reached === -1 ? "nothing yet" : `${STEPS[reached]!.name} ${WORDS[progress[reached]!]}`;
  return (
    <span class="pipeline" role="img" aria-label={last}>
      {progress.map((p, i) => <i key={i} class={p} />)}
    </span>
  );
}

const WORDS: Readonly<Record<Progress, string>> = { none: "", busy: "under way", bad: "failed", done: "done" };

interface ChoiceProps {
  name: string;
  value: string;
  options: readonly string[];
  onChange: (value: string) => void;
}

function Choice({ name, value, options, onChange }: ChoiceProps) {
  const all = value === "" || options.includes(value) ? options : [value, ...options];
  return (
    <label>
      {name}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        <option value="">all</option>
        {all.map((option) => <option key={option} value={option}>{visible(option)}</option>)}
      </select>
    </label>
  );
}
