#!/usr/bin/env bash
# Functions of test/dockerfile and test/image-hosts: roots of Debian's packages, a namespace for their
# mounts, and what programs in them need for this machine's network. Sourced, never run.
# shellcheck disable=SC2153 # scripts/lib.sh sets ROOT

# Variables of the network that also hold in a root.
NETWORK_VARIABLES='HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
  RUSTUP_DIST_SERVER RUSTUP_UPDATE_ROOT NPM_CONFIG_REGISTRY npm_config_registry'

# Where a root has the certificates that this machine trusts.
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

# in_own_namespace WORD…: has the script run in a mount namespace of its own, if root runs it: mounts of a
# script that is killed end with it. It gets --in-namespace before these words.
in_own_namespace() {
  if [ "$(id -u)" != 0 ] || [ "${1:-}" = --in-namespace ]; then return 0; fi
  exec unshare --mount --propagation private "$0" --in-namespace "$@"
}

# remove_root FOLDER: removes a folder after all mounts beneath it.
remove_root() {
  local mount
  while read -r mount; do umount --lazy "$mount" || true; done < <(
    awk -v at="$1/" 'index($2, at) == 1 { print $2 }' /proc/self/mounts | tac
  )
  rm -rf --one-file-system "$1"
}

# make_root SUITE FOLDER PACKAGE…: makes a root of a release of Debian with these packages. Its network is
# that of this machine, its apt serves the same release, and it trusts the same certificates.
make_root() {
  local suite=$1 root=$2 log
  shift 2
  say "Making a root of Debian $suite"
  log=$(mktemp)
  # Unsafe, because the root is of no use after a crash of the machine.
  mmdebstrap --quiet --mode=root --variant=minbase --dpkgopt=force-unsafe-io \
    --include="$(IFS=, && echo "ca-certificates,$*")" "$suite" "$root" >"$log" 2>&1 || {
    cat "$log" >&2
    rm "$log"
    die "mmdebstrap could not make a root of Debian $suite"
  }
  rm "$log"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  trust "$root"
}

# trust FOLDER: puts the certificates there that this machine trusts, also those of a proxy.
trust() {
  local bundle=${SSL_CERT_FILE:-$CERTIFICATES}
  [ ! -s "$bundle" ] || cp --dereference "$bundle" "$1$CERTIFICATES"
}

# network_environment: prints the variables of the network, one NAME=VALUE a line.
network_environment() {
  local name
  for name in $NETWORK_VARIABLES; do
    [ -z "${!name:-}" ] || printf '%s=%s\n' "$name" "${!name}"
  done
  # npm and Node.js read no certificates of the system.
  printf '%s=%s\n' SSL_CERT_FILE "$CERTIFICATES" NODE_EXTRA_CA_CERTS "$CERTIFICATES"
}

# toolchain: prints the folder of the Rust of this checkout.
toolchain() { (cd "$ROOT" && rustc --print sysroot); }

# put_rust FOLDER: puts this machine's rustup and Rust there, as the official image of Rust has them. Debian's
# own Rust is older than the oldest that compiles all.
put_rust() {
  local from name at=$1/usr/local
  from=$(toolchain)
  name=$(basename "$from")
  mkdir -p "$at/rustup/toolchains/$name" "$at/cargo/bin"
  tar -C "$from" --exclude=./share --exclude=./lib/rustlib/src -cf - . |
    tar -C "$at/rustup/toolchains/$name" --no-same-owner -xf -
  printf 'version = "12"\nprofile = "minimal"\ndefault_toolchain = "%s"\n\n[overrides]\n' "$name" \
    >"$at/rustup/settings.toml"
  cp --dereference "$(command -v rustup)" "$at/cargo/bin/rustup"
  for name in cargo rustc rustdoc; do ln -s rustup "$at/cargo/bin/$name"; done
  # Where this machine has other sources of crates.
  local config=${CARGO_HOME:-$HOME/.cargo}/config.toml
  [ ! -e "$config" ] || cp "$config" "$at/cargo/config.toml"
}
