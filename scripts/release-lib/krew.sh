#!/usr/bin/env bash
# Part of scripts/release: the manifest of kubectl's plugin manager, krew. Sourced, never run.

# check_files_url URL: the address of the folder that the files of a release will be in.
check_files_url() {
  [[ $1 =~ ^https://[A-Za-z0-9.:/_~%@+-]+[^/]$ ]] ||
    die "--files-url: $1 is not the address of a folder, as https://example.com/releases/0.2.0"
}

# without_platform PLATFORM: leaves it out of the manifest in standard input.
without_platform() {
  awk -v archive="-$1.tar.gz" '
    function end_of_platform() { if (!index(text, archive)) printf "%s", text; text = "" }
    /^    - selector:$/ { end_of_platform() }
    { text = text $0 "\n" }
    END { end_of_platform() }'
}

# krew_manifest VERSION URL FOLDER: prints deploy/krew/hostloop.yaml, filled in for the archives in FOLDER,
# which will be at URL. A release without clients for other systems has none of their platforms.
krew_manifest() {
  local version=$1 url=$2 at=$3 manifest platform archive name sum
  manifest=$(sed '/^#/d' "$ROOT/deploy/krew/hostloop.yaml")
  for platform in "${ARCHITECTURES[@]/#/linux-}" "${CLIENTS[@]}"; do
    archive=$at/hostloop-$version-$platform.tar.gz
    if [ ! -e "$archive" ] && [[ $platform != linux-* ]]; then
      manifest=$(without_platform "$platform" <<<"$manifest")
      continue
    fi
    sum=$(sha256sum <"$archive")
    name=${platform^^}
    manifest=${manifest//SHA256_${name//-/_}/"${sum%% *}"}
  done
  manifest=${manifest//VERSION/"$version"}
  manifest=${manifest//URL\//"$url/"}
  ! grep --quiet 'VERSION\|SHA256_\|URL/' <<<"$manifest" ||
    die "deploy/krew/hostloop.yaml has a platform that no archive is for"
  printf '%s\n' "$manifest"
}
