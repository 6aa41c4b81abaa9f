/** The frame of the page: navigation, problems, and the recorder. */

import { useEffect } from "preact/hooks";
import { viewsOf } from "../model/exploration.ts";
import { count } from "../model/text.ts";
import { Text } from "../parts/name.tsx";
import { useApp } from "../parts/use-engine.ts";
import { fragment, type View } from "../route.ts";
import { Cluster } from "./cluster.tsx";
import { ExplorationView } from "./exploration.tsx";
import { LifeView } from "./life.tsx";
import { NodeView } from "./node.tsx";
import { Recorder } from "./recorder.tsx";
import { Volumes } from "./volumes.tsx";

const TITLES: Readonly<Record<View, string>> = {
  volumes: "Volumes", life: "One life", node: "One node", cluster: "Cluster", exploration: "Exploration",
};

export function Shell() {
  const { engine, route } = useApp();
  const views = viewsOf(engine.state);
  const view = views.includes(route.view) ? route.view : views[0]!;
  const { exploration } = engine.state;
  useEffect(() => {
    document.title = `${TITLES[view]} – hostloop`;
  }, [view]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>Skip to the content</a>
      <Header views={views} shown={view} />
      <Problems />
      <main id="main" tabIndex={-1} aria-busy={engine.idle ? undefined : true}>
        {view === "volumes" && <Volumes />}
        {view === "life" && <LifeView />}
        {view === "node" && <NodeView />}
        {view === "cluster" && <Cluster />}
        {view === "exploration" && exploration && <ExplorationView report={exploration} />}
      </main>
      <Recorder />
    </>
  );
}

function Header({ views, shown }: { views: readonly View[]; shown: View }) {
  const { engine, route } = useApp();
  const { hello } = engine.state;
  const place = [hello?.cluster || hello?.endpoint, hello?.version].filter((part) => part).join(", ");
  return (
    <header>
      <strong class="brand">hostloop</strong>
      <nav aria-label="Views">
        {views.map((view) => (
          <a key={view} href={fragment({ ...route, view })} aria-current={shown === view ? "page" : undefined}>{TITLES[view]}</a>
        ))}
      </nav>
      {place !== "" && <span class="place"><Text value={place} /></span>}
    </header>
  );
}

/** Problems that are shown at once; the others are counted, and shown on demand. */
const MOST = 5;

function Problems() {
  const { engine } = useApp();
  const { unknown } = engine;
  const { problems, gaps } = engine.state;
  const lost = gaps.reduce((sum, gap) => sum + gap.lost, 0);
  const sentences = [
    ...[...engine.problems].map(([about, text]) => ({ about: `page ${about}`, text })),
    ...[...problems].map(([about, { text }]) => ({ about, text })),
  ];
  if (lost > 0) sentences.push({ about: "gaps", text: `Processes overwrote ${count(lost, "event")} before they were read. Timelines have gaps.` });
  if (unknown > 0) sentences.push({ about: "unknown", text: `This page left out ${count(unknown, "message")} of a kind that it does not know.` });
  const line = ({ about, text }: { about: string; text: string }) => <li key={about}><Text value={text} /></li>;
  return (
    <section class="problems" role="status" aria-label="Problems">
      {sentences.length > 0 && <ul>{sentences.slice(0, MOST).map(line)}</ul>}
      {sentences.length > MOST && (
        <details>
          <summary>and {sentences.length - MOST} more</summary>
          <div tabIndex={0} role="region" aria-label="Further problems">
            <ul>{sentences.slice(MOST).map(line)}</ul>
          </div>
        </details>
      )}
    </section>
  );
}

