#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: its output for a person, or with --json for a program: one object per step,
# printed when the step ends, and a summary.
# Sourced, never run.

INDENT='       '
WIDTH=110
if [ -t 1 ]; then
  columns=$(tput cols 2>/dev/null || echo $WIDTH)
  if [ "$columns" -lt $WIDTH ]; then WIDTH=$columns; fi
  if [ "$WIDTH" -lt 60 ]; then WIDTH=60; fi
fi
if [ -n "$BOLD" ]; then
  GREEN=$'\e[32m' YELLOW=$'\e[33m' BLUE=$'\e[34m'
else
  GREEN='' YELLOW='' BLUE=''
fi

STEP=0 CALLS=0 CHECKS=0 FAILED=0 TITLE='' STEP_BEGAN='' CALLING='' ERROR=''

micros() { echo "${EPOCHREALTIME//[.,]/}"; }
since() { echo $(($(micros) - $1)); }

# Prints a time, such as "5.5 ms", "124 ms", "5.38 s" or "2 min 5 s".
took() {
  local us=$1
  if [ "$us" -lt 9950 ]; then
    printf '%d.%d ms' $((us / 1000)) $((us % 1000 / 100))
  elif [ "$us" -lt 999500 ]; then
    printf '%d ms' $(((us + 500) / 1000))
  elif [ "$us" -lt 59995000 ]; then
    printf '%d.%02d s' $((us / 1000000)) $((us % 1000000 / 10000))
  else
    printf '%d min %d s' $((us / 60000000)) $((us / 1000000 % 60))
  fi
}

# Prints bytes to three figures: "1.50 GiB", "512 MiB".
bytes() { jq -rn --argjson n "$1" -L "$LIBRARY" 'include "picture"; $n | bytes'; }

# Shortens UUIDs and hashes to their beginning and end, and cuts the end of other long texts.
brief() {
  local text
  text=$(sed -E 's/([0-9a-f]{4})[0-9a-f]{4}(-[0-9a-f]{4}){3}-[0-9a-f]{8}([0-9a-f]{4})/\1…\3/g
    s/([0-9a-f]{4})[0-9a-f]{56}([0-9a-f]{4})/\1…\2/g
    s/([0-9a-f]{4})[0-9a-f]{12}-[0-9a-f]{28}([0-9a-f]{4})/\1…\2/g' <<<"$1")
  if [ ${#text} -gt "$2" ]; then text="${text:0:$(($2 - 1))}…"; fi
  printf '%s' "$text"
}

line() { [ "$JSON" = yes ] || printf '%s\n' "$*"; }

# log LIST FIELD VALUE…: adds an entry to a list of the step's object.
log() {
  local list=$1
  shift
  [ "$JSON" = no ] || jq -cn --args '[range(0; $ARGS.positional | length; 2) as $i |
    {($ARGS.positional[$i]): $ARGS.positional[$i + 1]}] | add' -- "$@" >>"$WORK/step-$list"
}

# Prints a paragraph.
paragraph() {
  local text
  fold -s -w "$WIDTH" <<<"$*" | while IFS= read -r text; do line "${text% }"; done
}

# step TITLE WHY
step() {
  local text
  STEP=$((STEP + 1)) TITLE=$1
  STEP_BEGAN=$(micros)
  rm -f "$WORK"/step-*
  line ''
  line "$DIM$(printf '%2d' $STEP)/$STEPS$RESET  $BOLD$1$RESET"
  fold -s -w $((WIDTH - ${#INDENT})) <<<"$2" |
    while IFS= read -r text; do line "$INDENT$DIM${text% }$RESET"; done
}

# call TEXT COMMAND…: a request to the cluster, or a wait. The command's output is in
# $WORK/out afterwards. If it fails the story ends.
call() {
  local text=$1 began time room ok=yes
  shift
  began=$(micros)
  CALLS=$((CALLS + 1))
  "$@" >"$WORK/out" 2>"$WORK/err" &
  CALLING=$!
  if [ -t 1 ] && [ "$JSON" = no ]; then ticking "$text" "$began"; fi
  wait $CALLING || ok=no
  CALLING=''
  time=$(since "$began")
  log calls rpc "$text" ok $ok microseconds "$time"
  room=$((WIDTH - ${#INDENT} - 2 - 10))
  text=$(brief "$text" $room)
  line "$INDENT${BLUE}→$RESET $text$(printf '%*s' $((room - ${#text})) '') $DIM$(printf '%9s' "$(took "$time")")$RESET"
  [ $ok = yes ] || fail "that did not succeed: $(cause "$WORK/err")"
}

# cause FILE: prints, in one line, why a command failed that wrote FILE. That is the first sentence of a
# script that ended, else the first lines. What comes after it is of the cleanup: progress, and bash's
# notices of processes that it killed.
cause() {
  local said
  said=$(sed -E $'s/\e\\[[0-9;]*m//g' "$1" |
    grep -Ev '^(    |==> )|: line [0-9]+: +[0-9]+ (Killed|Terminated) ' || true)
  { grep --max-count 1 -E '^(cluster|image|render): ' <<<"$said" || head -n 3 <<<"$said"; } |
    tr '\n' ' ' | sed 's/ *$//' | cut -c1-400
}

# Shows on the terminal what the story waits for, and for how long.
ticking() {
  local text
  text=$(brief "$1" $((WIDTH - ${#INDENT} - 12)))
  sleep 0.1
  while kill -0 $CALLING 2>/dev/null; do
    printf '\r%s%s→ %s  %s%s\e[K' "$INDENT" "$DIM" "$text" "$((($(since "$2")) / 1000000)) s" "$RESET"
    sleep 0.1
  done
  printf '\r\e[K'
}

# fact NAME TEXT: prints a figure or finding.
fact() {
  line "$INDENT· $DIM$(printf '%-6s' "$1")$RESET $(brief "$2" $((WIDTH - ${#INDENT} - 9)))"
  log facts name "$1" text "$2"
}

# show NAME: prints a few lines of standard input unchanged.
show() {
  local text
  while IFS= read -r text; do
    line "$INDENT  $DIM$(brief "$text" $((WIDTH - ${#INDENT} - 2)))$RESET"
    log facts name "$1" text "$text"
  done
}

# check WHAT COMMAND…: prints WHAT as held if COMMAND succeeds; otherwise the story ends.
check() {
  local what=$1 ok=yes
  shift
  CHECKS=$((CHECKS + 1))
  "$@" >"$WORK/out" 2>"$WORK/err" || ok=no
  log checks what "$what" ok $ok
  if [ $ok = yes ]; then
    line "$INDENT$GREEN✓$RESET $what"
  else
    FAILED=$((FAILED + 1))
    fail "NOT SO: $what$(sed 's/^/ (/; s/$/)/' "$WORK/err" | head -n 1)"
  fi
}

is() { [ "$1" = "$2" ] || { echo "it is '$1', not '$2'" >&2 && return 1; }; }
is_at_least() { [ "$1" -ge "$2" ] || { echo "it is $1, below $2" >&2 && return 1; }; }
is_at_most() { [ "$1" -le "$2" ] || { echo "it is $1, above $2" >&2 && return 1; }; }
is_empty() { [ -z "$1" ] || { echo "there is: ${1//$'\n'/, }" >&2 && return 1; }; }

# fail WHY: ends the story and cleans up.
fail() {
  ERROR=$1
  line "$INDENT$RED✗ $ERROR$RESET"
  finish_step
  exit 1
}

finish_step() {
  local time
  [ -n "$TITLE" ] || return 0
  time=$(since "$STEP_BEGAN")
  if [ "$JSON" = no ]; then
    line "$INDENT  ${DIM}took $(took "$time")$RESET"
  else
    touch "$WORK"/step-{calls,changes,facts,checks}
    jq -cn --argjson step $STEP --argjson of "$STEPS" --arg title "$TITLE" --arg error "$ERROR" \
      --argjson time "$time" \
      --slurpfile calls "$WORK/step-calls" --slurpfile changes "$WORK/step-changes" \
      --slurpfile facts "$WORK/step-facts" --slurpfile checks "$WORK/step-checks" '
      {step: $step, of: $of, title: $title,
       calls: [$calls[] | {rpc, ok: (.ok == "yes"), milliseconds: ((.microseconds | tonumber) / 1000)}],
       changes: $changes, facts: $facts, checks: [$checks[] | .ok = (.ok == "yes")],
       milliseconds: ($time / 1000)} + if $error == "" then {} else {error: $error} end'
  fi
  TITLE=''
}

# Prints the last lines.
summary() {
  local time cut=$1
  time=$(since "$BEGAN")
  if [ "$JSON" = yes ]; then
    jq -cn --argjson steps $STEP --argjson calls $CALLS --argjson checks $CHECKS \
      --argjson failed $FAILED --argjson cut "$cut" --argjson time "$time" \
      '{steps: $steps, calls: $calls, checks: $checks, failed: $failed, cut_short: $cut,
        milliseconds: ($time / 1000)}'
    return
  fi
  line ''
  if [ "$cut" = true ]; then
    line "${RED}Not everything could be shown.$RESET $STEP steps, $CALLS calls, $CHECKS checks in $(took "$time")."
    [ -z "$ERROR" ] || line "It ended with: $ERROR"
  else
    line "${GREEN}Everything held.$RESET $STEP steps, $CALLS calls, $CHECKS checks in $(took "$time")."
  fi
}
