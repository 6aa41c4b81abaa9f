#!/usr/bin/env bash
# Part of scripts/image: Debian packages. deploy/image-packages.lock has their versions and checksums
# for each architecture. Sourced, never run.
# shellcheck disable=SC2154 # scripts/image sets work

LOCK=$ROOT/deploy/image-packages.lock
ARCHITECTURES=(amd64 arm64)
# The release of Debian that these packages are of.
SUITE=bookworm
# What the package debian-archive-keyring has, in Debian and Ubuntu. Newer ones may have the second only.
DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$DEBIAN_KEYS" ] || [ ! -e "${DEBIAN_KEYS%.gpg}.pgp" ] || DEBIAN_KEYS=${DEBIAN_KEYS%.gpg}.pgp

# The driver's tools, and xfs_repair for administrators.
PROGRAMS=(blkid wipefs mkfs.ext4 e2fsck resize2fs mkfs.xfs xfs_growfs xfs_repair mkfs.btrfs btrfs)
# The packages of these tools, of the program's libraries and of the files below.
PACKAGES=(util-linux e2fsprogs xfsprogs btrfs-progs libc6 libgcc-s1 base-files)
# Files that these tools read, and files that show scanners the version of Debian.
DATA=(/etc/mke2fs.conf /etc/debian_version /usr/lib/os-release)

# Prints Debian's name for the folder of an architecture's libraries.
triplet() {
  case $1 in
    amd64) echo x86_64-linux-gnu ;;
    arm64) echo aarch64-linux-gnu ;;
  esac
}

# os_release KEY: prints the machine's value for it, such as its ID.
os_release() {
  # shellcheck source=/dev/null
  (. /etc/os-release 2>/dev/null && printf '%s' "${!1-}")
}

# True on the release of Debian that the locked packages are of.
is_packages_debian() { [ "$(os_release ID)-$(os_release VERSION_CODENAME)" = "debian-$SUITE" ]; }

# debian_sources: prints Debian's own sources of the packages, for machines that have others.
debian_sources() {
  local suite
  for suite in "debian $SUITE" "debian $SUITE-updates" "debian-security $SUITE-security"; do
    echo "deb [signed-by=$DEBIAN_KEYS] http://deb.debian.org/$suite main"
  done
}

# private_apt ARCH COMMAND WORD…: runs apt-get or apt-cache for one architecture, with an empty list of
# installed packages. It uses this machine's sources if they are of the same release of Debian, and
# changes nothing of this machine's apt.
private_apt() {
  local arch=$1 command=$2 folder=$work/apt-$1
  shift 2
  if [ ! -e "$folder" ]; then
    mkdir -p "$folder"/{lists/partial,cache/archives/partial,preferences.d,sources.list.d}
    : >"$folder/status"
    printf 'Package: *\nPin: release o=%s\nPin-Priority: %s\n\n' Debian 500 '*' -1 \
      >"$folder/preferences"
    cat >"$folder/apt.conf" <<CONF
#clear APT::Architectures;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "$folder";
Dir::State::status "$folder/status";
Dir::Cache "$folder/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
Dir::Etc::preferences "$folder/preferences";
Dir::Etc::preferencesparts "$folder/preferences.d";
Acquire::GzipIndexes "false";
CONF
    if ! is_packages_debian; then
      debian_sources >"$folder/sources.list"
      printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "%s";\n' "$folder/sources.list" \
        "$folder/sources.list.d" >>"$folder/apt.conf"
    fi
    say "Reading the lists of Debian's packages for $arch" >&2
    apt-get -c "$folder/apt.conf" -q update >"$folder/log" 2>&1 || {
      cat "$folder/log" >&2
      die "apt-get could not read the lists of Debian's packages for $arch"
    }
  fi
  # `apt-get download` writes to the current folder.
  (cd "$folder" && "$command" -q -c "$folder/apt.conf" "$@")
}

has_sum() { [ -e "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]; }

# Debian's archive of every version that it has ever served.
SNAPSHOTS=https://snapshot.debian.org

# download_old ARCH PACKAGE VERSION FILE: downloads a version that Debian's mirrors no longer have.
download_old() {
  local arch=$1 version=${3//:/%3A} hash
  hash=$(curl --fail --silent --show-error --location --retry 3 \
    "$SNAPSHOTS/mr/binary/$2/$version/binfiles" |
    jq --raw-output --arg arch "$arch" '[.result[] | select(.architecture == $arch) | .hash][0] // empty')
  [ -n "$hash" ] &&
    curl --fail --silent --show-error --location --retry 3 --output "$4" "$SNAPSHOTS/file/$hash"
}

# download ARCH PACKAGE VERSION SHA256: prints the package's file, which stays in the cache.
download() {
  local arch=$1 package=$2 version=$3 sum=$4 file=$CACHE/packages/$4.deb got
  if ! has_sum "$file" "$sum"; then
    if private_apt "$arch" apt-get download "$package=$version" >"$work/log"; then
      got=$(echo "$work/apt-$arch/$package"_*.deb)
    else
      note "Taking $package $version from $SNAPSHOTS" >&2
      got=$work/old.deb
      download_old "$arch" "$package" "$version" "$got" || {
        cat "$work/log" >&2
        die "neither apt's sources nor $SNAPSHOTS serve $package $version for $arch: look at the" \
          "network, or run scripts/image --update-packages for the versions that they serve"
      }
    fi
    has_sum "$got" "$sum" ||
      die "$package $version for $arch is not the file with the checksum in $LOCK: trust neither"
    mkdir -p "$CACHE/packages"
    # A rename, because others may look for it at the same time.
    mv "$got" "$file.$$"
    mv "$file.$$" "$file"
  fi
  echo "$file"
}

# unpack PACKAGE FILE TREE: unpacks it, and adds its paths and its name to TREE.files. Packages name
# some files by their places from before the merge of /usr; all arrive under /usr.
unpack() {
  local tree=$3 name
  if [ ! -e "$tree" ]; then
    mkdir -p "$tree"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$tree/$name"; done
  fi
  dpkg-deb --fsys-tarfile "$2" |
    tar -C "$tree" --keep-directory-symlink --no-same-owner -xvf - |
    sed -E "s,^\.,,; s,^/(bin|sbin|lib|lib64)/,/usr/\1/,; s,\$,\t$1," >>"$tree.files"
}

# Makes absolute symlinks point into the tree.
turn_links_inwards() {
  local link
  while read -r link; do
    ln --symbolic --force --no-dereference "$1$(readlink "$link")" "$link"
  done < <(find "$1" -type l -lname '/*')
}

# Prints the libraries and the loader that a program or library names.
needed_by() {
  LC_ALL=C readelf --wide --dynamic --program-headers "$1" |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p; s/.*program interpreter: \(.*\)\]/\1/p'
}

# symbol_versions needs|definition FILE…: prints the versions of symbols, such as GLIBC_2.34, that the
# files need or define. Symbols that a program only uses if they are there do not count.
symbol_versions() {
  local section=$1
  shift
  LC_ALL=C readelf --wide --version-info "$@" | awk -v section="$section" '
    /^Version / { inside = $2 == section }
    inside && / Name: / && !/ Flags: (BASE|WEAK)/ { sub(/.* Name: /, ""); print $1 }' |
    sort --unique
}

# libraries TREE ARCH FILE…: prints the path of each library that the files need, directly or not.
libraries() {
  local tree=$1 arch=$2 folder name path seen=' ' file
  folder=/usr/lib/$(triplet "$arch")
  shift 2
  while [ $# -gt 0 ]; do
    file=$1
    shift
    while read -r name; do
      case $name in
        /usr/*) path=$name ;;
        /*) path=/usr$name ;;
        *) path=$folder/$name ;;
      esac
      [[ $seen != *" $path "* ]] || continue
      [ -e "$tree$path" ] ||
        die "$(basename "$file") needs $name, which no package for $arch in $LOCK has:" \
          "run scripts/image --update-packages"
      seen+="$path "
      echo "$path"
      set -- "$@" "$tree$path"
    done < <(needed_by "$file")
  done
}

# tool_files TREE ARCH FILE…: prints, for each file of the packages that belongs into the image, its
# path in the tree and its place in the image. FILE… are programs that need libraries, too.
tool_files() {
  local tree=$1 arch=$2 program path found=()
  shift 2
  for program in "${PROGRAMS[@]}"; do
    path=/usr/sbin/$program
    [ -e "$tree$path" ] || path=/usr/bin/$program
    [ -e "$tree$path" ] || die "no package for $arch in $LOCK has $program: run scripts/image" \
      "--update-packages"
    found+=("$tree$path")
    printf '%s\t%s\n' "$path" "/usr/bin/$program"
  done
  { libraries "$tree" "$arch" "$@" "${found[@]}" && printf '%s\n' "${DATA[@]}"; } |
    sed 's/.*/&\t&/'
}

# legal_files TREE PACKAGE…: prints the same for the packages' terms, and for licences that these name.
legal_files() {
  local tree=$1 package file
  shift
  for package; do
    file=/usr/share/doc/$package/copyright
    [ -e "$tree$file" ] || die "the package $package does not say its licence"
    echo "$file"
    grep --only-matching '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$tree$file" || true
  done | sort --unique | while read -r file; do
    # Some texts name a licence that Debian has no file for.
    [ ! -e "$tree$file" ] || printf '%s\t%s\n' "$file" "$file"
  done
}

# locked ARCH: prints package, version and checksum of each of an architecture's packages.
locked() { awk -v arch="$1" '$1 == arch { print $2, $3, $4 }' "$LOCK"; }

# unpack_locked ARCH TREE
unpack_locked() {
  local package version sum file
  [ -n "$(locked "$1")" ] || die "$LOCK has no package for $1: run scripts/image --update-packages"
  while read -r package version sum; do
    # In two steps, because a failure inside the words of a command would not end the script.
    file=$(download "$1" "$package" "$version" "$sum")
    unpack "$package" "$file" "$2"
  done < <(locked "$1")
  turn_links_inwards "$2"
}

# status_files ARCH FOLDER: writes what Debian knows about each package, where scanners look for it in
# images without dpkg.
status_files() {
  local package version sum file
  mkdir -p "$2"
  while read -r package version sum; do
    file=$(download "$1" "$package" "$version" "$sum")
    dpkg-deb --field "$file" >"$2/$package"
    dpkg-deb --ctrl-tarfile "$file" | tar -xOf - ./md5sums >"$2/$package.md5sums" 2>/dev/null || true
  done < <(locked "$1")
}

# The packages with a file in the image, found by resolving the dependencies of PACKAGES.
update_packages() {
  local arch package version sum file tree used
  {
    echo "# The Debian packages that the image's files come from: architecture, package, version and"
    echo "# SHA-256 of the package's file. Made by scripts/image --update-packages."
    for arch in "${ARCHITECTURES[@]}"; do
      tree=$work/update-$arch
      private_apt "$arch" apt-get --simulate install "${PACKAGES[@]}" >"$work/resolved" ||
        die "apt's sources do not have Debian's ${PACKAGES[*]} for $arch"
      sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1 \2/p' "$work/resolved" | sort >"$work/resolved-$arch"
      while read -r package version; do
        sum=$(private_apt "$arch" apt-cache show "$package=$version" |
          awk '$1 == "SHA256:" && !seen++ { print $2 }')
        file=$(download "$arch" "$package" "$version" "$sum")
        unpack "$package" "$file" "$tree"
        printf '%s %s %s %s\n' "$arch" "$package" "$version" "$sum" >>"$work/candidates-$arch"
      done <"$work/resolved-$arch"
      turn_links_inwards "$tree"
      tool_files "$tree" "$arch" "$tree/usr/lib/$(triplet "$arch")"/lib{c.so.6,m.so.6,gcc_s.so.1} >"$work/list"
      printf '/usr/lib/%s/libgcc_s.so.1\t\n' "$(triplet "$arch")" >>"$work/list"
      mapfile -t used < <(owners "$tree" "$work/list")
      legal_files "$tree" "${used[@]}" >>"$work/list"
      owners "$tree" "$work/list" |
        awk 'NR == FNR { used[$1]; next } $2 in used' - "$work/candidates-$arch"
    done
  } >"$work/lock"
  cp "$work/lock" "$LOCK"
  say "$LOCK has $(grep -vc '^#' "$LOCK") packages"
}

# owners TREE LIST: prints the packages that the files in a list come from.
owners() {
  local path
  cut -f1 "$2" | while read -r path; do
    path=$(realpath "$1$path")
    echo "${path#"$1"}"
  done | awk -F '\t' 'NR == FNR { owner[$1] = $2; next } { print owner[$1] }' "$1.files" - |
    sort --unique
}
