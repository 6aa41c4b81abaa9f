#!/usr/bin/env bash
# Part of scripts/demo: records what happens, as a page that shows it again.
# Sourced, never run.
# shellcheck disable=SC2154 # scripts/demo sets RECORD, MODE, CONTEXT, CLUSTER_DIR and PROGRAM

RECORDING_PID=''

# From here on, everything is recorded.
begin_recording() {
  [ -n "$RECORD" ] || return 0
  local where=(--context "$CONTEXT")
  [ "$MODE" != own ] || where=(--kubeconfig "$CLUSTER_DIR/kubeconfig")
  "$PROGRAM" ui --no-open --namespace "$NAMESPACE" --record "$RECORD" "${where[@]}" \
    </dev/null >"$WORK/recording" 2>&1 &
  RECORDING_PID=$!
}

# Writes the recording.
end_recording() {
  local pid=$RECORDING_PID
  [ -n "$pid" ] || return 0
  RECORDING_PID=''
  kill -INT "$pid" 2>/dev/null || true
  wait "$pid" || {
    say "The recording failed: $(tail -n 1 "$WORK/recording")" >&2
    return 1
  }
}
