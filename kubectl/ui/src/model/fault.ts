/** The fault that a volume has because its claim asks for it. */

import { text } from "./json.ts";
import type { ReportFields } from "./state.ts";

export interface Fault {
  /** False once it is over and has left nothing. */
  felt: boolean;
  /** The fault as it was asked for, and its state. */
  words: string;
}

/** The fault of a volume in a node's report. */
export function faultOf(item: ReportFields | undefined): Fault | undefined {
  const words = text(item?.fault, "fault");
  const state = text(item?.fault, "state");
  return words === "" ? undefined : { felt: state !== "over", words: `${words}, ${state}` };
}
