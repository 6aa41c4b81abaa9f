/** Starts the page: with its recording if it has one, else with the stream. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Engine } from "./engine.ts";
import { STREAM } from "./model/message.ts";
import { load } from "./recording/load.ts";
import { fragment, parseRoute, tokenOf, type Route } from "./route.ts";
import { openSession, recordingOf, tabStorage } from "./stream/session.ts";
import { connect, type Source } from "./stream/source.ts";
import { AppContext } from "./parts/use-engine.ts";
import { Shell } from "./views/shell.tsx";

/** How often the page checks the format of the stream. */
const CHECK_MS = 250;

let redraw = () => {};
let engine: Engine;

function App() {
  const [route, setRoute] = useState(() => parseRoute(location.hash));
  const [, setVersion] = useState("");
  useEffect(() => {
    const onChange = () => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", onChange);
    // Ages grow by themselves, twice a second.
    redraw = () => setVersion(`${engine.version} ${engine.idle} ${Math.floor(engine.now() / 5e5)}`);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  const go = (change: Partial<Route>) => {
    const next = { ...route, ...change };
    setRoute(next);
    history.replaceState(null, "", fragment(next));
  };
  useEffect(() => {
    document.getElementById("main")?.scrollTo(0, 0);
  }, [route.view, route.life, route.node]);
  return <AppContext.Provider value={{ engine, route, go }}><Shell /></AppContext.Provider>;
}

function replay(json: string): void {
  const { messages, problems } = load(json);
  for (const message of messages) engine.add(message, 1);
  engine.loaded();
  for (const [i, text] of problems.entries()) engine.problem(`recording ${i}`, text);
}

function follow(session: string): void {
  const query = new URLSearchParams({ session });
  connect(
    () => new EventSource(`stream?${query}`) as unknown as Source,
    {
      open: () => {
        engine.repeats.resume();
        engine.solved("stream");
      },
      message: (json) => engine.receive(json),
      cut: (retry) => {
        const seconds = (retry / 1e3).toLocaleString("en");
        engine.problem("stream", `The stream was cut. This page tries again in ${seconds} s. If the program that serves it has ended, start it again. What was seen stays.`);
      },
    },
    (run, ms) => setTimeout(run, ms),
  );
  setInterval(checkFormat, CHECK_MS);
}

function checkFormat(): void {
  const stream = engine.state.hello?.stream;
  if (stream === undefined || stream === STREAM) engine.solved("format");
  else engine.problem("format", `The stream has the format ${stream}, and this page reads ${STREAM}. What it understands is shown.`);
}

/** Draws the page. What is shown comes afterwards. */
function draw(isRecording: boolean): void {
  engine = new Engine(isRecording, () => redraw());
  const root = document.getElementById("app")!;
  root.textContent = "";
  render(<App />, root);
}

async function start(): Promise<void> {
  const embedded = document.getElementById("recording");
  if (embedded) {
    draw(true);
    replay(embedded.textContent ?? "");
    return;
  }
  const session = await openSession(tokenOf(location.hash), tabStorage(), (path, init) => fetch(path, init));
  // The token is used up. An address with one would only be refused.
  history.replaceState(null, "", fragment(parseRoute(location.hash)));
  if ("refused" in session) {
    draw(false);
    engine.problem("session", session.refused);
    return;
  }
  draw(session.recording);
  if (session.recording) {
    const recording = await recordingOf(session.key, (path) => fetch(path));
    if ("refused" in recording) engine.problem("session", recording.refused);
    else replay(recording.json);
  } else {
    follow(session.key);
  }
}

void start().then(() => engine.run());
