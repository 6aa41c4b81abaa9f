/** Reads a recording, and says in sentences what of it can't be shown. */

import { at, list, text } from "../model/json.ts";
import { RECORDING } from "./document.ts";

export interface Loaded {
  version: string;
  messages: unknown[];
  problems: string[];
}

export function load(json: string): Loaded {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return { version: "", messages: [], problems: [`The recording is damaged: ${why}. Save it again.`] };
  }
  const problems: string[] = [];
  const format = text(value, "recording");
  if (format !== RECORDING) {
    const name = format === "" ? "no format" : `the format ${format}`;
    problems.push(`The recording has ${name}, and this page reads ${RECORDING}. What it understands is shown.`);
  }
  if (!Array.isArray(at(value, "messages"))) problems.push("The recording has no list of messages.");
  return { version: text(value, "version"), messages: list(value, "messages"), problems };
}
