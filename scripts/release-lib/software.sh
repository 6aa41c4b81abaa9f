#!/usr/bin/env bash
# Part of scripts/release: which software is in the programs and in the image, and its licences.
# Sourced, never run.
# shellcheck disable=SC2154 # scripts/release sets work, version and image_repository

# crates_in PACKAGE TARGET: prints name and version of the crates in a program. What only runs during the
# build (build scripts, procedural macros) is not in it.
crates_in() {
  (cd "$ROOT" && cargo tree --locked --package "$1" --target "$2" \
    --edges normal,no-proc-macro --prefix none --format '{p}') |
    awk '{ print $1, substr($2, 2) }' | sort --unique
}

# crate_facts METADATA: prints name, version, licence and manifest of all crates but this workspace's,
# separated by tabs. METADATA is a file with the output of `cargo metadata`.
crate_facts() {
  jq --raw-output '.packages[] | select(.source) |
    [.name, .version, (.license // "NOASSERTION" | gsub(" */ *"; " OR ")), .manifest_path] | @tsv' "$1"
}

# page_software: prints name, version, licence and manifest of the packages in the page.
page_software() {
  local name manifest
  jq --raw-output '.dependencies | keys[]' "$ROOT/kubectl/ui/package.json" | while read -r name; do
    manifest=$ROOT/kubectl/ui/node_modules/$name/package.json
    jq --raw-output --arg manifest "$manifest" '[.name, .version, .license, $manifest] | @tsv' "$manifest"
  done
}

# licence_texts FOLDER: prints the files of a crate that have its licence.
licence_texts() {
  find "$1" -maxdepth 1 -type f -regextype posix-extended \
    -iregex '.*/(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?' | sort
}

# third_party_licences CRATES FACTS: prints the licence of each crate in the list CRATES, and each text
# once, after the names of the crates that have it.
third_party_licences() {
  local name version licence manifest file sum std texts=$work/texts files
  rm -rf "$texts"
  mkdir -p "$texts"
  std=$(cd "$ROOT" && rustc --print sysroot)/share/doc/rust/licenses
  echo "hostloop contains the following software. Each line has its licence by the identifiers of"
  echo "SPDX, and the texts are below. The image's Debian packages have theirs in /usr/share/doc."
  echo
  {
    printf 'std\t%s\t%s\t%s\n' "$(cd "$ROOT" && rustc --version | cut -d' ' -f2)" 'MIT OR Apache-2.0' ''
    page_software
    printf 'musl\t%s\t%s\t%s\n' '(static programs)' MIT ''
    awk -F '\t' 'NR == FNR { used[$0]; next } ($1 " " $2) in used' "$1" "$2"
  } | while IFS=$'\t' read -r name version licence manifest; do
    files=()
    if [ "$name" = std ]; then
      mapfile -t files < <(find "$std" -name 'MIT*' -o -name 'Apache-2.0*' 2>/dev/null | sort)
    elif [ -n "$manifest" ]; then
      mapfile -t files < <(licence_texts "$(dirname "$manifest")")
    fi
    printf '%s %s: %s' "$name" "$version" "$licence"
    [ ${#files[@]} -gt 0 ] || printf ' (its source has no text)'
    echo
    for file in ${files[@]+"${files[@]}"}; do
      # Some texts differ only in the ends of their lines.
      tr -d '\r' <"$file" >"$texts/text"
      sum=$(digest "$texts/text")
      printf '%s %s\n' "$name" "$version" >>"$texts/$sum.crates"
      mv "$texts/text" "$texts/$sum.text"
    done
  done
  for file in "$texts"/*.crates; do
    printf '%s\t%s\n' "$(head -1 "$file")" "$file"
  done | sort | cut -f2 | while read -r file; do
    printf '\n%s\n' "-------------------------------------------------------------------------------"
    sort --unique "$file"
    echo
    cat "${file%.crates}.text"
  done
}

# debian_packages ARCH: prints name, version, checksum and source of each package in the image.
debian_packages() {
  local package version sum file source
  while read -r package version sum; do
    file=$(download "$1" "$package" "$version" "$sum")
    source=$(dpkg-deb --field "$file" Source | cut -d' ' -f1)
    printf '%s %s %s %s\n' "$package" "$version" "$sum" "${source:-$package}"
  done < <(locked "$1")
}

# debian_release ARCH: prints which Debian the image says it is, such as debian-12.
debian_release() {
  local package version sum file
  read -r package version sum < <(locked "$1" | grep '^base-files ')
  file=$(download "$1" "$package" "$version" "$sum")
  dpkg-deb --fsys-tarfile "$file" | tar -xO ./usr/lib/os-release |
    sed -n 's/^VERSION_ID="\(.*\)"/debian-\1/p'
}

# Prints name, version and checksum of the crates that come from a registry.
crate_sums() {
  awk -F '"' '/^name = / { name = $2 } /^version = / { version = $2 }
    /^checksum = / { print name, version, $2 }' "$ROOT/Cargo.lock"
}

# image_software ARCH DIGEST METADATA CRATES: prints the list of an image's software. METADATA is a file
# with the output of `cargo metadata`.
image_software() {
  debian_packages "$1" >"$work/debian"
  crate_sums >"$work/sums"
  jq --from-file "$ROOT/scripts/release-lib/sbom.jq" \
    --rawfile crates "$4" --rawfile debian "$work/debian" --rawfile sums "$work/sums" \
    --arg arch "$1" --arg digest "${2#sha256:}" --arg version "$version" \
    --arg repository "$image_repository" --arg licence "$(workspace license)" \
    --arg rust "$(cd "$ROOT" && rustc --version | cut -d' ' -f2)" --arg distro "$(debian_release "$1")" \
    --arg created "$(created)" "$3"
}
