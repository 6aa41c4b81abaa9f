/** Small parts that show values. */

import type { ComponentChildren } from "preact";
import type { Fault } from "../model/fault.ts";
import type { Tone } from "../model/verdict.ts";
import { visible } from "../model/text.ts";

/** Text that another program wrote. Its direction of writing stays inside. */
export function Text({ value, kind }: { value: string; kind?: string }) {
  return <bdi class={kind}>{visible(value)}</bdi>;
}

const MARKS: Readonly<Record<Tone, string>> = { good: "●", busy: "◐", wait: "◷", bad: "▲", gone: "○" };

/** The mark of a volume that fails because its claim asks for that. */
const FAULT = "↯";

/** A state: a mark and a word, so that nothing is said by colour alone. */
export function StateWord({ tone, word, fault }: { tone: Tone; word: string; fault?: Fault | undefined }) {
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true" class="mark">{fault?.felt ? FAULT : MARKS[tone]}</span>
      {word}
    </span>
  );
}

/** One of a list of facts. */
export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  return <div><dt>{name}</dt><dd>{children}</dd></div>;
}

/** JSON for reading: not longer than a page. */
export function Json({ value }: { value: unknown }) {
  return <pre tabIndex={0} aria-label="JSON">{visible(JSON.stringify(value, null, 2) ?? "")}</pre>;
}
