#!/usr/bin/env bash
# Part of scripts/image and scripts/release: builds the programs for an architecture. Sourced, never
# run.
# shellcheck disable=SC2153 # need_toolchain sets TARGET

# rust_target ARCH LIBC: prints the name that Rust has for it; LIBC is gnu or musl.
rust_target() {
  case $1 in
    amd64) echo "x86_64-unknown-linux-$2" ;;
    arm64) echo "aarch64-unknown-linux-$2" ;;
  esac
}

# cross_tools ARCH TARGET: exports what cargo, cc and bindgen read to compile for another architecture,
# with Debian's cross compiler. Static programs need it, too: musl comes with Rust's library.
cross_tools() {
  local name gcc=gcc triplet=x86_64-linux-gnu under=${2//-/_}
  if [ "$1" != "$(dpkg --print-architecture)" ]; then
    [ "$1" = amd64 ] || triplet=aarch64-linux-gnu
    gcc=$triplet-gcc
    need_packages "$gcc=gcc-${triplet//_/-}" "/usr/$triplet/lib/libc.so=libc6-dev-$1-cross" \
      "/usr/$triplet/include/linux/loop.h=linux-libc-dev-$1-cross"
    export "BINDGEN_EXTRA_CLANG_ARGS_$under=-I/usr/$triplet/include"
  fi
  export "CC_$under=$gcc"
  name=CARGO_TARGET_${under^^}_LINKER
  export "$name=$gcc"
}

# need_target TARGET: Rust's standard library for it, in the toolchain of the checkout.
need_target() {
  [ ! -d "$(cd "$ROOT" && rustc --print target-libdir --target "$1")" ] || return 0
  command -v rustup >/dev/null ||
    die "Rust's standard library for $1 is not installed, and rustup, which would install it, neither"
  say "Installing Rust's standard library for $1"
  (cd "$ROOT" && rustup --quiet target add "$1") || die "rustup could not install the standard library for $1"
}

# program_at PROFILE TARGET [NAME]: prints where cargo puts a program, by default that of a node. TARGET is
# empty for this machine's.
program_at() {
  local folder=$1
  [ "$folder" != dev ] || folder=debug
  echo "$TARGET/${2:+$2/}$folder/${3:-hostloop}"
}

CARGO_AUDITABLE_VERSION=0.7.7

build_cargo_auditable() {
  env -u CARGO_TARGET_DIR cargo install --debug --locked --version "$CARGO_AUDITABLE_VERSION" \
    cargo-auditable --root "$1"
}

# released_programs PROFILE ARCH…: builds the programs for each architecture: that of a node static and
# not, and the client static. All of one are built side by side, since linking one uses one core.
# program_at says where each is. The client has the page, which scripts/ui must have made. Each has a
# list of its crates for scanners. Their bytes do not depend on the folders of the checkout and of cargo.
released_programs() {
  local profile=$1 auditable home=${CARGO_HOME:-$HOME/.cargo} folder arch triple name flags='' maps=''
  local targets=() static=() build=()
  shift
  auditable=$(build_tool cargo-auditable "$CARGO_AUDITABLE_VERSION" build_cargo_auditable)
  # The last folder that matches counts, and one may be inside another.
  for folder in "$ROOT=/hostloop" "$TARGET=/target" "$home=/cargo"; do
    flags+="${flags:+$'\x1f'}--remap-path-prefix=$folder"
    maps+=" -ffile-prefix-map=$folder"
  done
  (
    for arch in "$@"; do
      for triple in "$(rust_target "$arch" musl)" "$(rust_target "$arch" gnu)"; do
        need_target "$triple"
        cross_tools "$arch" "$triple"
        name=CFLAGS_${triple//-/_}
        export "$name=${!name:-}$maps"
        targets+=(--target "$triple")
      done
      static+=(--target "$(rust_target "$arch" musl)")
    done
    export CARGO_ENCODED_RUSTFLAGS=$flags CARGO_PROFILE_DEV_STRIP=symbols
    cd "$ROOT" || exit
    build=("$auditable" auditable build --quiet --locked --profile "$profile")
    # Each of its package alone: with the whole workspace, crates would have the tests' features, too.
    "${build[@]}" --package hostloop-driver --bin hostloop "${targets[@]}"
    "${build[@]}" --package hostloop-kubectl --features ui --bin kubectl-hostloop "${static[@]}"
  )
}
