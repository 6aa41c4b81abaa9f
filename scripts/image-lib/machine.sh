#!/usr/bin/env bash
# Part of scripts/image: what this machine must have, checked before anything is built, and folders for
# what is made. Sourced, never run.
# shellcheck disable=SC2154 # scripts/image sets arch

# What a release build of the programs takes in the target folder, and what it takes besides, in MiB.
BUILD_ROOM=4000
IMAGE_ROOM=500
RUST=$(workspace rust-version)

# is_older ONE OTHER: true if version ONE is below OTHER.
is_older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | head -1)" = "$1" ]; }

# True if programs that this machine links may need a newer C library than that of the image.
has_newer_libc() {
  local ours
  ours=$(getconf GNU_LIBC_VERSION 2>/dev/null) || return 0
  is_older "$(locked "$arch" | awk '$1 == "libc6" { sub(/-.*/, "", $2); print $2 }')" "${ours#* }"
}

# room_in FOLDER: prints the MiB that its filesystem has. The folder may be missing yet.
room_in() {
  local folder=$1
  until [ -d "$folder" ]; do folder=$(dirname "$folder"); done
  df --output=avail --block-size=1M "$folder" | tail -1 | tr -d ' '
}

# need_room FOLDER MIB WHAT OTHERWISE: ends the script if the folder has less. OTHERWISE is what else helps.
need_room() {
  local has
  has=$(room_in "$1")
  [ "$has" -ge "$2" ] || die "$3 takes $2 MiB in $1, which has $has MiB: make room there$4"
}

# need_packaging: what taking files out of Debian's packages needs.
need_packaging() {
  local needs=(readelf=binutils jq=jq curl=curl)
  if ! command -v dpkg-deb >/dev/null || ! command -v apt-get >/dev/null; then
    die "$(os_release PRETTY_NAME) has no dpkg and apt: the image's files come from Debian's packages." \
      "Use Debian or Ubuntu, or a container engine: docker build -f deploy/Dockerfile ."
  fi
  is_packages_debian || needs+=("$DEBIAN_KEYS=debian-archive-keyring")
  need_packages "${needs[@]}"
  need_room "$CACHE" "$IMAGE_ROOM" "Keeping Debian's packages" ", or set HOSTLOOP_CACHE to another folder"
  need_room "${TMPDIR:-/tmp}" "$IMAGE_ROOM" "Making the image" ", or set TMPDIR to another folder"
}

# need_compiler: what building a program needs. It sets TARGET.
need_compiler() {
  need_toolchain
  local has
  has=$(cd "$ROOT" && rustc --version | cut -d' ' -f2)
  ! is_older "${has%%-*}" "$RUST" || die "Rust $has is too old: install Rust $RUST or newer"
  # What was built before is there already.
  compgen -G "$TARGET/*/deps" >/dev/null ||
    need_room "$TARGET" "$BUILD_ROOM" "Building" ", or set CARGO_TARGET_DIR to another folder"
}

# make_folder FOLDER: makes it and the folders above it.
make_folder() {
  local first=$1
  [ ! -d "$1" ] || return 0
  until [ -d "$(dirname "$first")" ]; do first=$(dirname "$first"); done
  mkdir -p "$1"
  of_person "$first"
}

# True if this machine can make the page of the client.
has_node() {
  local has
  has=$(node --version 2>/dev/null) || return
  command -v npm >/dev/null || return
  ! is_older "${has#v}" 20
}
