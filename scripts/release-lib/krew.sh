#!/usr/bin/env bash
# Part of scripts/release: the manifest of kubectl's plugin manager, krew. Sourced, never run.

# check_files_url URL: the address of the folder that the files of a release will be in.
check_files_url() {
  [[ $1 =~ ^https://[A-Za-z0-9.:/_~%@+-]+[^/]$ ]] ||
    die "--files-url: $1 is not the address of a folder, as https://example.com/releases/0.2.0"
}

# krew_manifest VERSION URL FOLDER: prints deploy/krew/hostloop.yaml, filled in for the archives in FOLDER,
# which will be at URL.
krew_manifest() {
  local version=$1 url=$2 at=$3 manifest arch sum
  manifest=$(sed '/^#/d' "$ROOT/deploy/krew/hostloop.yaml")
  for arch in "${ARCHITECTURES[@]}"; do
    sum=$(sha256sum <"$at/hostloop-$version-linux-$arch.tar.gz")
    manifest=${manifest//SHA256_${arch^^}/"${sum%% *}"}
  done
  manifest=${manifest//VERSION/"$version"}
  manifest=${manifest//URL\//"$url/"}
  ! grep --quiet 'VERSION\|SHA256_\|URL/' <<<"$manifest" ||
    die "deploy/krew/hostloop.yaml has an architecture that no archive is for"
  printf '%s\n' "$manifest"
}
