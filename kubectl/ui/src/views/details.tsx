/** What is known about the chosen item of a timeline. */

import { diff } from "../life/diff.ts";
import type { Detail, Item } from "../life/items.ts";
import type { Cut, Exploration } from "../model/exploration.ts";
import { text } from "../model/json.ts";
import type { Span } from "../model/state.ts";
import { bytes, clock, duration, visible } from "../model/text.ts";
import { Json, Text } from "../parts/name.tsx";

interface Props {
  item: Item | undefined;
  start: number;
  now: number;
  /** What is said if nothing is chosen. */
  hint: string;
}

export function Details({ item, start, now, hint }: Props) {
  return (
    <section class="details" aria-live="polite" aria-labelledby="details">
      <h2 id="details">{item ? <Text value={item.label} /> : "Details"}</h2>
      {item ? <Chosen item={item} start={start} now={now} /> : <p>{hint}</p>}
    </section>
  );
}

function Chosen({ item, start, now }: { item: Item; start: number; now: number }) {
  const until = item.moment ? "" : `, for ${duration(item.end - item.t)}${item.end >= now ? " so far" : ""}`;
  return (
    <>
      <p>At {clock(item.t)}, {duration(item.t - start)} after the start{until}.</p>
      <Body detail={item.detail} />
    </>
  );
}

function Body({ detail }: { detail: Detail }) {
  switch (detail.is) {
    case "step":
      return (
        <p>
          {detail.step.kind.sentence}{" "}
          <a href={detail.step.kind.link} rel="noreferrer" target="_blank">CSI specification</a>
        </p>
      );
    case "wait":
      return <p>Waited for <strong><Text value={detail.wait.who} /></strong> after this: <Text value={detail.wait.after} />.</p>;
    case "span":
      return <SpanDetails span={detail.span} />;
    case "lifetime":
      return <Json value={detail.tracked.object} />;
    case "notice":
      return (
        <p>
          {text(detail.tracked.object, "type")}: <Text value={text(detail.tracked.object, "message")} />
        </p>
      );
    case "version": {
      if (detail.version.op === "delete") return <p>The object was deleted.</p>;
      if (!detail.before) return <Json value={detail.version.object} />;
      return <Changes before={detail.before.object} after={detail.version.object} />;
    }
    case "cut":
      return <CutDetails cut={detail.cut} exploration={detail.exploration} />;
    case "written":
      return <p>Between two cuts, {bytes(detail.written)} at most were written.</p>;
  }
}

/** What is known of a cut, and how to get it again. */
function CutDetails({ cut, exploration }: { cut: Cut; exploration: Exploration }) {
  const { kept } = cut;
  if (kept) {
    return (
      <>
        <p>The check <strong>{cut.result === "failed" ? "failed" : "has not begun"}</strong>: <Text value={kept.why} /></p>
        {kept.log.length > 0 && <><h3>The end of its log</h3><pre tabIndex={0} aria-label="Log">{kept.log.map(visible).join("\n")}</pre></>}
        <h3>To get it again</h3>
        <p>Snapshot <Text value={kept.snapshot} kind="mono" /> has it. Write this claim to a file, and create it with <code>kubectl create -f FILE</code>:</p>
        <Json value={kept.again} />
      </>
    );
  }
  return (
    <>
      <p>{cut.result === "passed" ? "The check passed, so the cut is deleted." : "It was not checked, and is deleted."}</p>
      {exploration.command !== "" && (
        <>
          <h3>To cut the power again</h3>
          <pre tabIndex={0} aria-label="Command">{exploration.command}</pre>
        </>
      )}
    </>
  );
}

function SpanDetails({ span }: { span: Span }) {
  const facts: [string, string][] = [
    ["Process", `${span.process}${span.node === "" ? "" : ` at ${span.node}`}`],
    ["About", span.about],
    ["State", span.state],
    ["Code", span.code],
    ["Error", span.error],
    ["Trace", span.trace],
  ];
  return (
    <>
      <dl class="facts">
        {facts.filter(([, value]) => value !== "").map(([name, value]) => (
          <div key={name}><dt>{name}</dt><dd><Text value={value} /></dd></div>
        ))}
      </dl>
      {Object.keys(span.request).length > 0 && <><h3>Request</h3><Json value={span.request} /></>}
      {Object.keys(span.answer).length > 0 && <><h3>Answer</h3><Json value={span.answer} /></>}
    </>
  );
}

function Changes({ before, after }: { before: unknown; after: unknown }) {
  const changes = diff(before, after);
  if (changes.length === 0) return <p>Only fields of the API server's own changed.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Changed fields">
      <table class="changes">
        <thead><tr><th scope="col">Field</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
        <tbody>
          {changes.map((change) => (
            <tr key={change.path}>
              <th scope="row"><Text value={change.path} kind="mono" /></th>
              <td><Text value={change.before ?? "–"} kind="mono" /></td>
              <td><Text value={change.after ?? "–"} kind="mono" /></td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
