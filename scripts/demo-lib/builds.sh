#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: the builds before the story. They run side by side, because each has moments
# that use one processor only. A line shows what is built and for how long.
# Sourced, never run.

# Each build has a description, a process group and a start time. Its output is in $WORK/build-N.
BUILDS=() BUILD_GROUPS=() BUILD_BEGAN=()

# begin_build WHAT COMMAND…: starts a build.
begin_build() {
  local what=$1
  shift
  # A process group, so that the end of the demo ends the compilers, too.
  set -m
  "$@" >"$WORK/build-${#BUILDS[@]}" 2>&1 </dev/null &
  set +m
  BUILDS+=("$what") BUILD_GROUPS+=($!) BUILD_BEGAN+=("$SECONDS")
}

# Waits for all builds. Dies if one fails.
await_builds() {
  local shown=$SECONDS i left=("${!BUILDS[@]}") running
  while [ ${#left[@]} -gt 0 ]; do
    sleep 0.5
    running=()
    for i in "${left[@]}"; do
      if kill -0 "${BUILD_GROUPS[i]}" 2>/dev/null; then running+=("$i"); else build_ended "$i"; fi
    done
    left=(${running[@]+"${running[@]}"})
    [ ${#left[@]} -gt 0 ] || break
    if [ -t 2 ]; then
      printf '\r%s\e[K' "$(progress 34 "${left[@]}")"
    elif [ $((SECONDS - shown)) -ge 30 ]; then
      shown=$SECONDS
      note "$(progress 60 "${left[@]}")"
    fi
  done
  BUILDS=() BUILD_GROUPS=() BUILD_BEGAN=()
}

build_ended() { # NUMBER
  [ ! -t 2 ] || printf '\r\e[K'
  if ! wait "${BUILD_GROUPS[$1]}"; then
    tail -n 30 "$WORK/build-$1"
    die "the build of ${BUILDS[$1]} failed, with the output above"
  fi
  note "${BUILDS[$1]}: built in $(lasting $((SECONDS - BUILD_BEGAN[$1])))"
}

# progress WIDTH NUMBER…: prints what these builds make, and for how long.
progress() {
  local width=$1 i text=''
  shift
  for i in "$@"; do
    text+="${text:+ | }${BUILDS[i]}, $(lasting $((SECONDS - BUILD_BEGAN[i]))): "
    text+=$(tail -n 1 "$WORK/build-$i" | tr -d '\r' | sed 's/^[ =>]*//; s/, once .*//' | cut -c1-"$width")
  done
  printf '%s' "$text"
}

end_builds() {
  local group
  for group in ${BUILD_GROUPS[@]+"${BUILD_GROUPS[@]}"}; do kill -- "-$group" 2>/dev/null || true; done
}

# Builds as for the tests, without optimization, because the release build takes minutes more.
demo_programs() {
  (cd "$ROOT" && cargo build --locked --bin hostloop --bin kubectl-hostloop)
}

demo_image() {
  demo_programs || return
  stripped_image "$PROGRAM" "$IMAGE"
}
