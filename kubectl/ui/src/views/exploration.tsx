/** The report of an exploration: its cuts on an axis of time, and how to get each again. */

import { useMemo, useState } from "preact/hooks";
import { cutItems } from "../life/cut-items.ts";
import { extent, type Tone } from "../life/items.ts";
import { readExploration, type Cut, type Exploration, type Result } from "../model/exploration.ts";
import type { Unchecked } from "../model/json.ts";
import { bytes, count, duration } from "../model/text.ts";
import type { Tone as StateTone } from "../model/verdict.ts";
import type * as Wire from "../model/wire.generated.ts";
import { Fact, StateWord, Text } from "../parts/name.tsx";
import { Table, type Column } from "../parts/table.tsx";
import { Details } from "./details.tsx";
import { Timeline } from "./timeline.tsx";

const ROW_HEIGHT = 36;

const LEGEND: readonly (readonly [Tone, string])[] = [
  ["ok", "passed"], ["bad", "failed"], ["wait", "the check has not begun"], ["object", "not checked"],
  ["use", "written since the cut before"],
];

const STATES: Readonly<Record<Result, { tone: StateTone; word: string }>> = {
  passed: { tone: "good", word: "passed" },
  failed: { tone: "bad", word: "failed" },
  unknown: { tone: "wait", word: "unknown" },
  unchecked: { tone: "gone", word: "not checked" },
};

export function ExplorationView({ report }: { report: Unchecked<Wire.ExplorationReport> }) {
  const [chosen, setChosen] = useState("");
  const { exploration, all, range } = useMemo(() => {
    const exploration = readExploration(report);
    const all = cutItems(exploration);
    return { exploration, all, range: extent(all, exploration.start) };
  }, [report]);
  const item = all.find((each) => each.id === chosen);
  return (
    <section class="view exploration" aria-labelledby="title">
      <div class="bar">
        <h1 id="title">Exploration of <Text value={`${exploration.namespace}/${exploration.claim}`} /></h1>
        <p class="sum">{checked(exploration)}</p>
      </div>
      {exploration.problems.map((problem) => <p key={problem} class="why bad"><Text value={problem} /></p>)}
      <dl class="facts">
        <Fact name="Cuts">{cutsOf(exploration)}</Fact>
        {exploration.ended !== "" && <Fact name="Ended early"><Text value={exploration.ended} /></Fact>}
        {exploration.seed !== undefined && <Fact name="Seed">{exploration.seed}</Fact>}
        <Fact name="Node"><Text value={exploration.node} /></Fact>
        <Fact name="Volume"><Text value={exploration.volume} kind="mono" /></Fact>
        <Fact name="ID"><Text value={exploration.id} kind="mono" /></Fact>
      </dl>
      <Timeline
        all={all}
        range={range}
        chosen={item}
        onChoose={setChosen}
        life={exploration.id}
        legend={LEGEND}
        folds={false}
      />
      <Details
        item={item}
        start={range[0]}
        now={range[1]}
        hint="Choose a cut in the timeline or in the table, to see how to get it again."
      />
      <h2>All cuts</h2>
      <Table
        caption="All cuts"
        columns={columns(exploration, chosen, setChosen)}
        rows={exploration.cuts}
        rowKey={(cut) => String(cut.number)}
        rowHeight={ROW_HEIGHT}
        rowClass={(cut) => (idOf(cut) === chosen ? "chosen" : "")}
        empty="No cut was taken."
      />
    </section>
  );
}

const idOf = (cut: Cut) => `cut ${cut.number}`;

function cutsOf({ taken, requested, burst }: Exploration): string {
  const of = taken < requested ? ` of ${requested.toLocaleString("en")}` : "";
  return `${taken.toLocaleString("en")}${of} in ${duration(burst)}`;
}

function checked({ passed, failed, unknown }: Exploration) {
  return (
    <>
      {count(passed + failed + unknown, "cut")} checked
      {failed > 0 && <>{", "}<span class="bad">{failed} failed</span></>}
      {unknown > 0 && `, ${unknown} unknown`}
      {failed + unknown === 0 && ", all passed"}
    </>
  );
}

function columns(exploration: Exploration, chosen: string, choose: (id: string) => void): Column<Cut>[] {
  return [
    {
      name: "Cut",
      kind: "number",
      cell: (cut) => (
        <button type="button" class="plain" aria-pressed={idOf(cut) === chosen} onClick={() => choose(idOf(cut))}>
          {cut.number}
        </button>
      ),
    },
    { name: "After the first", kind: "number", cell: (cut) => duration(cut.t - exploration.start) },
    { name: "Result", kind: "grow", cell: (cut) => <StateWord {...STATES[cut.result]} /> },
    { name: "Written before", kind: "number wide", cell: (cut) => (cut.written === undefined ? "–" : bytes(cut.written)) },
    { name: "Snapshot", kind: "grow wide", cell: (cut) => <Text value={cut.kept?.snapshot ?? "–"} /> },
    { name: "Why", kind: "grow", cell: (cut) => <Text value={cut.kept?.why ?? ""} /> },
  ];
}
