#!/usr/bin/env bash
# Part of scripts/release: the client for systems that only it runs on. .github/workflows/release.yml builds
# it there, and takes its names from here. Sourced, never run.
# shellcheck disable=SC2154 # scripts/release sets work, version and output

# The system and the architecture of each, as its archive names them.
# shellcheck disable=SC2034 # for the scripts that source it
CLIENTS=(darwin-amd64 darwin-arm64 windows-amd64)

# client_target CLIENT: prints the name that Rust has for it.
client_target() {
  case $1 in
    darwin-amd64) echo x86_64-apple-darwin ;;
    darwin-arm64) echo aarch64-apple-darwin ;;
    windows-amd64) echo x86_64-pc-windows-msvc ;;
  esac
}

# client_program CLIENT: prints the name of its program.
client_program() {
  case $1 in
    windows-*) echo kubectl-hostloop.exe ;;
    *) echo kubectl-hostloop ;;
  esac
}

# check_clients FOLDER: ends the script if FOLDER lacks one.
check_clients() {
  local client file
  for client in "${CLIENTS[@]}"; do
    file=$1/client-$client/$(client_program "$client")
    [ -f "$file" ] || die "--clients: there is no $file"
  done
}

# client_archive CLIENT FOLDER: makes the archive of a client in FOLDER.
client_archive() {
  local program packed=$work/client-$1
  program=$(client_program "$1")
  mkdir "$packed"
  # Files lose their mode on the way from one job of a workflow to another.
  install --mode=755 "$2/client-$1/$program" "$packed"
  cp "$output/LICENSE" "$output/THIRD-PARTY-LICENSES" "$packed"
  archive "$packed" "$packed.tar" "$program" LICENSE THIRD-PARTY-LICENSES
  gzip --no-name "$packed.tar"
  mv "$packed.tar.gz" "$output/hostloop-$version-$1.tar.gz"
}
