#!/usr/bin/env bash
# Functions of test/image and test/release that check an image's files. Sourced, never run.
# shellcheck disable=SC2153 # scripts/lib.sh sets ROOT

# shellcheck source=test/checks.sh
. "$ROOT/test/checks.sh"

# unpack_image ARCHIVE FOLDER: unpacks a docker archive to FOLDER/image, and its layer to FOLDER/rootfs,
# as a container engine does.
unpack_image() {
  mkdir -p "$2/image" "$2/rootfs"
  tar -C "$2/image" -xf "$1"
  tar -C "$2/rootfs" -xf "$2/image/$(jq --raw-output '.[0].Layers[0]' "$2/image/manifest.json")"
}

# check_layer FOLDER ARCH: the configuration is about the layer and the architecture.
check_layer() {
  local config=$1/image/config.json
  check "the layer's digest" same "sha256:$(sha256sum <"$1/image/layer.tar" | cut -d' ' -f1)" \
    "$(jq --raw-output '.rootfs.diff_ids[0]' "$config")"
  check "the architecture" same "$2" "$(jq --raw-output .architecture "$config")"
}

# check_tools ROOTFS [EMULATOR]: every program starts with nothing but what is in the image. EMULATOR is
# one in the root, for images of another architecture.
check_tools() {
  local root=$1 program fs
  shift
  inside() { chroot "$root" "${emulator[@]}" "$@"; }
  local emulator=("$@")
  check "hostloop" inside /usr/bin/hostloop --version
  for program in mkfs.ext4 e2fsck mkfs.xfs xfs_growfs xfs_repair mkfs.btrfs blkid wipefs; do
    check "$program" inside "/usr/bin/$program" -V
  done
  check "btrfs" inside /usr/bin/btrfs --version
  # resize2fs has no option without an effect.
  check "resize2fs" grep --quiet Usage <<<"$(inside /usr/bin/resize2fs 2>&1)"
  # Makes and recognises a filesystem of each kind. The tools read a mount table, which is empty here.
  mkdir -p "$root/proc/self"
  : >"$root/proc/self/mounts"
  for fs in ext4 xfs btrfs; do
    truncate --size 512M "$root/tmp/$fs"
    check "making $fs" inside "/usr/bin/mkfs.$fs" -q "/tmp/$fs"
    check "looking at $fs" grep --quiet "^TYPE=$fs\$" \
      <<<"$(inside /usr/bin/blkid -p -o export "/tmp/$fs" 2>&1)"
    rm "$root/tmp/$fs"
  done
  rm -r "$root/proc/self"
}

# check_packages ROOTFS ARCH: the files are those of the locked packages, and of no machine.
check_packages() {
  local root=$1 status=$1/var/lib/dpkg/status.d package
  check "the packages' status" same \
    "$(awk -v arch="$2" '$1 == arch { print $2, $3 }' "$ROOT/deploy/image-packages.lock" | sort)" \
    "$(for package in $(cd "$status" && find . -type f ! -name '*.md5sums' | sort); do
      echo "$(sed -n 's/^Package: //p' "$status/$package")" "$(sed -n 's/^Version: //p' "$status/$package")"
    done | sort)"
  check "which Debian it is" grep --quiet '^ID=debian$' "$root/etc/os-release"
  # Configuration files have no sum there.
  check "no file but the packages'" same '' "$(
    cd "$root" && find usr -type f ! -path usr/bin/hostloop ! -path 'usr/share/doc/hostloop/*' -print0 |
      xargs --null md5sum | awk 'NR == FNR { known[$1]; next } !($1 in known) { print $2 }' \
      <(cat "$status"/*.md5sums) -
  )"
  for package in $(cd "$status" && find . -type f ! -name '*.md5sums'); do
    check "the licence of $package" test -s "$root/usr/share/doc/$package/copyright"
  done
  check "the licences that these name" same '' "$(
    grep --recursive --only-matching --no-filename '/usr/share/common-licenses/L\?GPL-[0-9.]*[0-9]' \
      "$root/usr/share/doc" | sort --unique | while read -r file; do [ -e "$root$file" ] || echo "$file"; done
  )"
}

# check_safety ROOTFS: no file in the image helps an intruder.
check_safety() {
  check "no shell" test ! -e "$1/bin/sh"
  check "nothing that anyone can write to" test -z "$(find "$1" -type f -perm /022)"
  check "nothing that runs as its owner" test -z "$(find "$1" -type f -perm /6000)"
}

# label CONFIG NAME: prints a label of an image.
label() { jq --raw-output --arg name "org.opencontainers.image.$2" '.config.Labels[$name]' "$1"; }
