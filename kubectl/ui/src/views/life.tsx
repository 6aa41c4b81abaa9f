/** One life: its steps, its timeline, and a table of the same. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { extent, items, type Item } from "../life/items.ts";
import { steps } from "../life/steps.ts";
import { gather } from "../model/lives.ts";
import { row as rowOf } from "../model/rows.ts";
import { age, bytes, duration } from "../model/text.ts";
import { Fact, StateWord, Text } from "../parts/name.tsx";
import { Table, type Column } from "../parts/table.tsx";
import { useApp } from "../parts/use-engine.ts";
import { fragment } from "../route.ts";
import { Details } from "./details.tsx";
import { StepStrip } from "./step-strip.tsx";
import { Timeline } from "./timeline.tsx";

const ROW_HEIGHT = 36;

export function LifeView() {
  const { engine, route } = useApp();
  const key = route.life;
  const [chosen, setChosen] = useState("");
  useEffect(() => setChosen(""), [key]);
  // Half a second is enough for what only grows longer.
  const beat = Math.floor(engine.now() / 5e5);
  const change = `${engine.rows.changes(key)} ${beat}`;
  const found = useMemo(() => {
    const now = engine.now();
    const life = gather(engine.state, key);
    if (!life) return undefined;
    const all = items(life, engine.state, now);
    return { life, all, now, row: rowOf(life, engine.state, now), taken: steps(life.spans, now), range: extent(all, now) };
  }, [key, change, engine.state]);
  if (!found) {
    return (
      <section class="view" aria-labelledby="title">
        <h1 id="title">One life</h1>
        <p>
          {key === ""
            ? "Choose a volume in the list of volumes."
            : "Nothing is known about this volume at the time that is shown. Choose another one in the list."}
        </p>
      </section>
    );
  }
  const { life, all, row, taken, range, now } = found;
  const item = all.find((each) => each.id === chosen);
  return (
    <section class="view life" aria-labelledby="title">
      <div class="bar">
        <h1 id="title"><Text value={row.name} /></h1>
        <p class="sum"><StateWord tone={row.verdict.tone} word={row.verdict.word} fault={row.fault} /></p>
      </div>
      {row.verdict.reason !== "" && <p class={`why ${row.verdict.tone}`}><Text value={row.verdict.reason} /></p>}
      <dl class="facts">
        <Fact name="Kind">{row.label}</Fact>
        {row.namespace !== "" && <Fact name="Namespace"><Text value={row.namespace} /></Fact>}
        {row.node !== "" && (
          <Fact name="Node"><a href={fragment({ ...route, view: "node", node: row.node })}><Text value={row.node} /></a></Fact>
        )}
        {row.size !== undefined && <Fact name="Size">{bytes(row.size)}</Fact>}
        {row.used !== undefined && <Fact name="Used on disk">{bytes(row.used)}</Fact>}
        {row.fault !== undefined && <Fact name="Fault"><Text value={row.fault.words} /></Fact>}
        {row.created > 0 && <Fact name="Age">{age(row.created, now)}</Fact>}
        {life.ids.map((id) => <Fact key={id} name="ID"><Text value={id} kind="mono" /></Fact>)}
      </dl>
      <StepStrip taken={taken} main={life.kind === "claim" || life.kind === "volume"} onChoose={(step) => setChosen(idOf(all, step.t, step.kind.name))} />
      <Timeline all={all} range={range} chosen={item} onChoose={setChosen} life={key} />
      <Details
        item={item}
        start={range[0]}
        now={now}
        hint="Choose something in the timeline or in the table: an object's change, a call, a wait."
      />
      <h2>Everything in order</h2>
      <Table
        caption="Everything that happened, in order"
        columns={columns(range[0], chosen, setChosen)}
        rows={all}
        rowKey={(each) => each.id}
        rowHeight={ROW_HEIGHT}
        rowClass={(each) => (each.id === chosen ? "chosen" : "")}
        empty="Nothing has happened."
      />
    </section>
  );
}

function idOf(all: readonly Item[], t: number, name: string): string {
  return all.find((item) => item.detail.is === "step" && item.t === t && item.label === name)?.id ?? "";
}

function columns(start: number, chosen: string, choose: (id: string) => void): Column<Item>[] {
  return [
    { name: "After", kind: "number", cell: (item) => duration(item.t - start) },
    { name: "Lane", kind: "wide", cell: (item) => <Text value={item.lane} /> },
    {
      name: "What",
      kind: "grow",
      cell: (item) => (
        <button type="button" class="plain" aria-pressed={item.id === chosen} onClick={() => choose(item.id)}>
          {item.detail.is === "wait" ? "waits for " : ""}<Text value={item.label} />
        </button>
      ),
    },
    { name: "Duration", kind: "number", cell: (item) => (item.moment ? "–" : duration(item.end - item.t)) },
    { name: "Outcome", kind: "grow wide", cell: (item) => <Text value={item.outcome} /> },
  ];
}
