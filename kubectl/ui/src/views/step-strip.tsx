/** The steps of a life as the CSI specification names them, with their durations. */

import { STEPS, type Step, type StepKind } from "../life/steps.ts";
import { duration } from "../model/text.ts";

interface Props {
  taken: readonly Step[];
  /** True for lives that have all steps from provision to delete. */
  main: boolean;
  onChoose: (step: Step) => void;
}

export function StepStrip({ taken, main, onChoose }: Props) {
  const others = [...new Set(taken.map((step) => step.kind))].filter((kind) => !STEPS.includes(kind));
  const kinds = main ? [...STEPS, ...others] : others;
  return (
    <>
      <h2 class="hidden">Steps</h2>
      <ol class="steps" tabIndex={taken.length === 0 ? 0 : undefined} aria-label="Steps, by the CSI specification">
        {kinds.map((kind) => <Card key={kind.name} kind={kind} taken={taken.filter((s) => s.kind === kind)} onChoose={onChoose} />)}
      </ol>
      <details class="meaning">
        <summary>What the steps mean</summary>
        <dl>
          {kinds.map((kind) => (
            <div key={kind.name}>
              <dt>{kind.name}</dt>
              <dd>
                {kind.sentence}{" "}
                <a href={kind.link} rel="noreferrer" target="_blank">
                  CSI specification<span class="hidden"> on {kind.method ?? kind.name}</span>
                </a>
              </dd>
            </div>
          ))}
        </dl>
      </details>
    </>
  );
}

function Card({ kind, taken, onChoose }: { kind: StepKind; taken: readonly Step[]; onChoose: (step: Step) => void }) {
  const last = taken.at(-1);
  if (!last) {
    return <li class="none"><span class="name">{kind.name}</span><span class="time">–</span></li>;
  }
  const tone = last.code === "OK" ? (kind.method === undefined ? "use" : "done") : last.code === "" ? "busy" : "bad";
  const times = taken.length > 1 ? ` ×${taken.length}` : "";
  return (
    <li class={tone}>
      <button type="button" onClick={() => onChoose(last)} title={kind.sentence}>
        <span class="name">{kind.name}{times}</span>
        <span class="time">{duration(last.end - last.t)}</span>
        <span class="code">{outcome(last)}</span>
      </button>
    </li>
  );
}

function outcome(step: Step): string {
  const tries = step.calls > 1 ? `, ${step.calls} calls` : "";
  if (step.code === "") return `under way${tries}`;
  return step.kind.method === undefined ? "ended" : `${step.code}${tries}`;
}
