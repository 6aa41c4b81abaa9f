/** The recorder: which time is shown, and saving what was seen. */

import { download, fileName, recordingPage } from "../recording/save.ts";
import { clock, duration } from "../model/text.ts";
import { useApp } from "../parts/use-engine.ts";

const SPEEDS = [0.1, 1, 10, 60] as const;

export function Recorder() {
  const { engine } = useApp();
  const { history, mode } = engine;
  const from = history.from;
  const end = Math.max(history.end, from);
  const at = mode === "live" ? end : engine.at;
  const save = () => download(document, fileName(end), recordingPage(document, history, engine.state.hello?.version ?? ""));
  return (
    <footer aria-label="Recorder">
      <span class={`mode ${mode}`}>{modeText(mode, engine.recorded)}</span>
      {mode === "live" && <button type="button" onClick={() => engine.pause()}>Pause</button>}
      {mode === "playing" && <button type="button" onClick={() => engine.pause()}>Pause</button>}
      {mode === "paused" && <button type="button" onClick={() => engine.play()}>Play</button>}
      {!engine.recorded && mode !== "live" && <button type="button" onClick={() => engine.live()}>Back to live</button>}
      <label class="scrub">
        <span class="hidden">Time that is shown</span>
        <input
          type="range"
          min={0}
          max={Math.max(1, Math.ceil((end - from) / 1e3))}
          step={1}
          value={mode === "live" ? Math.ceil((end - from) / 1e3) : Math.round((at - from) / 1e3)}
          aria-valuetext={end === 0 ? "nothing" : clock(at)}
          onInput={(event) => {
            const value = Number(event.currentTarget.value);
            engine.seek(value >= (end - from) / 1e3 ? end : from + value * 1e3);
          }}
        />
      </label>
      <span class="time">{end === 0 ? "–" : clock(at)}</span>
      <label>
        <span class="hidden">Speed</span>
        <select value={String(engine.speed)} onChange={(event) => (engine.speed = Number(event.currentTarget.value))}>
          {SPEEDS.map((speed) => <option key={speed} value={String(speed)}>{speed}×</option>)}
        </select>
      </label>
      <button type="button" onClick={save} disabled={history.entries.length === 0}>Save recording</button>
      <span class="amount">{history.entries.length.toLocaleString("en")} messages, {duration(end - from)}</span>
    </footer>
  );
}

function modeText(mode: string, recorded: boolean): string {
  if (mode === "live") return "Live";
  if (mode === "playing") return "Playing";
  return recorded ? "Recording" : "Paused";
}
