#!/usr/bin/env bash
# Part of scripts/cluster: its processes. A part is one process; its log is DIR/log/PART and its
# identity is in DIR/pid/PART. Sourced, never run.

# Prints a process's start time in ticks since boot. With the PID it identifies the process.
started_at() {
  # The name in brackets may contain spaces, so count from its end.
  sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20
}

# start_process PART COMMAND…: starts it in a new session, so that it outlives the terminal.
start_process() {
  local part=$1
  shift
  mkdir -p "$(dirname "$DIR/log/$part")"
  setsid "$@" >>"$DIR/log/$part" 2>&1 </dev/null &
  echo "$! $(started_at $!)" >"$DIR/pid/$part"
}

# True if all threads of a process have ended, even if its parent has not reaped it.
is_dead() {
  awk '/^State:\tZ/ { zombie = 1 } /^Threads:/ { threads = $2 } END { exit !(zombie && threads <= 1) }' \
    "/proc/$1/status" 2>/dev/null
}

# Prints the PID of PART if that process is still running.
running() {
  local pid began
  read -r pid began 2>/dev/null <"$DIR/pid/$1" || return 1
  [ -n "$began" ] && [ "$(started_at "$pid")" = "$began" ] || return 1
  # A zombie is not running. But its main thread may be dead while others live and keep its ports.
  ! is_dead "$pid" || return 1
  echo "$pid"
}

# stop_process PART [SIGNAL]: returns after it has ended.
stop_process() {
  local pid
  if pid=$(running "$1"); then
    kill "-${2:-TERM}" "$pid" 2>/dev/null || true
    for _ in $(seq 600); do
      running "$1" >/dev/null || break
      sleep 0.1
    done
    if running "$1" >/dev/null; then kill -KILL "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$DIR/pid/$1"
}

# die_of PART WHY: prints the end of the part's log, and dies.
die_of() {
  printf '%s\n' "--- the end of $DIR/log/$1:" >&2
  tail -n 25 "$DIR/log/$1" >&2 || true
  die "$2"
}

# wait_for PART SECONDS WHAT COMMAND…: waits until COMMAND succeeds; dies if PART does.
wait_for() {
  local part=$1 limit=$2 what=$3 until
  shift 3
  until=$((SECONDS + limit))
  until "$@" >/dev/null 2>&1; do
    running "$part" >/dev/null || die_of "$part" "$part ended while $what was awaited"
    [ $SECONDS -lt $until ] || die_of "$part" "$what is not there after $limit s"
    sleep 0.2
  done
}
