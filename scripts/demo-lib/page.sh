#!/usr/bin/env bash
# Part of scripts/demo: the page beside the story, and its recording, which shows it again.
# Sourced, never run.
# shellcheck disable=SC2154 # the other parts set what is used here

PAGE_PID='' RECORDING_PID=''

# page_program ARGUMENT…: becomes `kubectl hostloop ui` for the story's cluster.
page_program() {
  local where=(--context "$CONTEXT")
  [ "$MODE" != own ] || where=(--kubeconfig "$CLUSTER_DIR/kubeconfig")
  exec "$CLIENT" ui --page "$PAGE" --namespace "$NAMESPACE" "${where[@]}" "$@"
}

# Starts the recording.
begin_recording() {
  [ -n "$RECORD" ] || return 0
  page_program --record "$RECORD" </dev/null >"$WORK/recording" 2>&1 &
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
  of_person "$RECORD"
}

# Serves the page, and prints its address.
open_page() {
  [ "$UI" = yes ] || return 0
  local options=()
  [ "$NO_OPEN" = no ] || options+=(--no-open)
  page_program ${options[@]+"${options[@]}"} </dev/null >"$WORK/page" 2>&1 &
  PAGE_PID=$!
  until grep --quiet '^http://' "$WORK/page"; do
    kill -0 "$PAGE_PID" 2>/dev/null || fail "the page can't be served: $(tail -n 1 "$WORK/page")"
    sleep 0.1
  done
  # The rest of what it says follows the address.
  sleep 0.1
  line ''
  sed "s/^/$INDENT/" "$WORK/page"
}

# With the page, the person sets the pace.
await_person() {
  [ -n "$PAGE_PID" ] && [ -t 0 ] || return 0
  read -r -p "${INDENT}Enter goes on " || line ''
}

end_page() {
  local pid=$PAGE_PID
  [ -n "$pid" ] || return 0
  PAGE_PID=''
  kill -INT "$pid" 2>/dev/null || true
  wait "$pid" || true
}

# Ends the page once the person has seen the last state.
close_page() {
  await_person
  end_page
}
