/** The state and the rows after messages, for tests. */

import { fold } from "../../src/model/fold.ts";
import { parse } from "../../src/model/message.ts";
import { select, Rows, type Row } from "../../src/model/rows.ts";
import { emptyState, type State } from "../../src/model/state.ts";

export function stateOf({ messages }: { messages: readonly unknown[] }): State {
  const state = emptyState();
  for (const value of messages) {
    const message = parse(value);
    if (message) fold(state, message);
  }
  return state;
}

export function rowsOf(state: State, now = state.now): Row[] {
  const rows = new Rows();
  rows.refresh(state, now, Number.POSITIVE_INFINITY, () => 0);
  return select(rows.all(), { namespace: "", node: "", text: "", state: "" });
}
