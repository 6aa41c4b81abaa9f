#!/usr/bin/env bash
# Functions that count the checks of a script and print those that fail. Sourced, never run.

passed=0 failed=0

ok() { passed=$((passed + 1)); }

not_ok() {
  failed=$((failed + 1))
  printf '%snot as it should be:%s %s\n' "$RED" "$RESET" "$*"
}

# check WHAT COMMAND…: the command succeeds.
check() {
  local what=$1 said
  shift
  if said=$("$@" 2>&1); then ok; else not_ok "$what: $said"; fi
}

# refused WHAT WORD COMMAND…: the command fails, and its message has the word.
refused() {
  local what=$1 word=$2 said
  shift 2
  if said=$("$@" 2>&1); then
    not_ok "$what: it was accepted"
  elif [[ $said == *"$word"* ]]; then
    ok
  else
    not_ok "$what: $said"
  fi
}

same() { [ "$1" = "$2" ] || { echo "'$1' is not '$2'" && return 1; }; }

# listing FOLDER: prints the mode, the owner, the name and the target of each file, and its sum.
listing() {
  (cd "$1" && find . -mindepth 1 -printf '%M %U:%G %p %l\n' | sort &&
    find . -type f -print0 | sort --zero-terminated | xargs --null sha256sum)
}

# Prints the counts. Fails if a check has failed.
total() {
  printf '%d passed, %d failed\n' "$passed" "$failed"
  [ "$failed" = 0 ]
}
