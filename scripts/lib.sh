#!/usr/bin/env bash
# Functions that all scripts use: they find tools, install packages and print progress.
# Sourced, never run.
# shellcheck disable=SC2034 # its variables are for the scripts that source it

# Filesystem tools and iptables are in these, which a person's PATH may lack, such as after `su` on Debian.
PATH=$PATH:/usr/sbin:/sbin

# The checkout that contains these scripts.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# What the scripts start inherits these variables of the person's, and no others: neither a kubeconfig, nor
# the cluster around a pod, nor settings of hostloop or its libraries.
INHERITED='
PATH HOME USER LOGNAME SHELL PWD OLDPWD SHLVL TERM COLORTERM COLUMNS LINES NO_COLOR LANG LANGUAGE LC_* TZ TMPDIR
SUDO_* XDG_CACHE_HOME XDG_RUNTIME_DIR DEBIAN_FRONTEND CI SOURCE_DATE_EPOCH
*_proxy *_PROXY SSL_CERT_* CURL_CA_BUNDLE GIT_SSL_CAINFO NODE_EXTRA_CA_CERTS NPM_CONFIG_* npm_config_*
CARGO_* RUSTUP_* RUSTC* RUSTFLAGS RUST_BACKTRACE CC CXX AR LD CFLAGS LDFLAGS CGO_* LIBCLANG_PATH PKG_CONFIG_*
GOPATH GOROOT GOCACHE GOMODCACHE GOTMPDIR GOPROXY GOSUMDB GONOSUMDB GONOSUMCHECK GONOPROXY GOPRIVATE GOINSECURE
GOFLAGS GOENV GOTOOLCHAIN GOGC GOMEMLIMIT GOMAXPROCS GIT_CONFIG_* TEST_RUN
HOSTLOOP_CACHE HOSTLOOP_BIN HOSTLOOP_CLIENT_BIN HOSTLOOP_FAILPOINTS_BIN HOSTLOOP_IMAGE HOSTLOOP_CLUSTER
HOSTLOOP_CLUSTER_KEEP HOSTLOOP_QEMU HOSTLOOP_HELM HOSTLOOP_CSI_SANITY HOSTLOOP_SIDECARS HOSTLOOP_HOST_PATH
HOSTLOOP_MOCK_DRIVER HOSTLOOP_SNAPSHOT_METADATA_CLIENT HOSTLOOP_LAST_RELEASE HOSTLOOP_DATABASE_IMAGES
HOSTLOOP_LIVE_* HOSTLOOP_WRITE_DOCS HOSTLOOP_CRASH_ONLY HOSTLOOP_WALK_ALL HOSTLOOP_FUZZ_SECONDS BOLERO_* PROPTEST_*
E2E_* FAULTS_* ADVERSARY_* ATTACK_* SIMULATOR_* DELTA_* EXPLORE_*
'

# Removes all other variables. Programs that look for a cluster find one that does not answer.
make_environment() {
  local variable pattern inherited
  # A pattern must not become names of files.
  local -
  set -f
  for variable in $(compgen -e); do
    inherited=no
    for pattern in $INHERITED; do
      # shellcheck disable=SC2254 # it is a pattern
      case $variable in $pattern) inherited=yes && break ;; esac
    done
    # Bash keeps some of its own.
    [ $inherited = yes ] || unset -v "$variable" 2>/dev/null || true
  done
  export KUBECONFIG=$ROOT/test/no-cluster.yaml
}

# A script for the cluster of the person who runs it sets OF_PERSON before it sources this file.
[ -n "${OF_PERSON:-}" ] || make_environment

# Built tools are kept here, by version, outside the checkout.
CACHE=${HOSTLOOP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hostloop}

CARGO_DENY_VERSION=0.20.2

# module_version MODULE PATH: prints the version of PATH that a Go module beneath test/ requires.
module_version() { sed -n "s|^.*$2 v\([0-9.]*\).*$|\1|p" "$ROOT/test/$1/go.mod" | head -1; }

# The Kubernetes of the tests.
KUBERNETES_VERSION=$(module_version tools k8s.io/kubernetes)

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' RESET=$'\e[0m'
else
  BOLD='' DIM='' RED='' RESET=''
fi

# Prints a line of progress.
say() { printf '%s==>%s %s\n' "$BOLD" "$RESET" "$*"; }

# Prints a remark under a line of progress.
note() { printf '    %s%s%s\n' "$DIM" "$*" "$RESET"; }

# Prints a sentence that says why, and ends the script with an error.
die() {
  printf '%s%s: %s%s\n' "$RED" "$(basename "$0")" "$*" "$RESET" >&2
  exit 1
}

# Prints the comment at the head of the script, which is its help.
usage() { sed -n '2,/^[^#]/{/^#/!q; s/^# \{0,1\}//; p}' "$0"; }

# lasting SECONDS: prints a time, such as "3 s" or "2 min 5 s".
lasting() {
  local s=$1
  if [ "$s" -lt 60 ]; then echo "$s s"; else echo "$((s / 60)) min $((s % 60)) s"; fi
}

# workspace KEY: prints the value that Cargo.toml has for all packages, such as their version.
workspace() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$ROOT/Cargo.toml" | head -1; }

need_root() {
  [ "$(id -u)" = 0 ] || die "this needs root, for loop devices and mounts: sudo $0 $*"
}

# need_packages COMMAND=PACKAGE…: installs the Debian packages of the commands that are missing. Only root
# can: others read which ones to install.
need_packages() {
  local missing
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null ||
    die "these Debian packages, or your distribution's like, are needed: $missing"
  [ "$(id -u)" = 0 ] || die "this machine lacks some packages: sudo apt-get install $missing"
  # Several clusters start side by side, but only one apt-get can run.
  {
    flock 9
    # Another may have installed them meanwhile. Without the lock's descriptor: a service that a
    # package starts would keep it.
    install_packages "$(missing_packages "$@")" 9<&-
  } 9</var/lib/dpkg
}

# missing_packages COMMAND=PACKAGE…: prints, in one line, the packages of commands that are missing.
missing_packages() {
  local pair missing=()
  for pair in "$@"; do
    case $pair in
      /*) [ -e "${pair%%=*}" ] || missing+=("${pair#*=}") ;;
      *) command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}") ;;
    esac
  done
  printf '%s' "${missing[*]}"
}

# install_packages "PACKAGE…": installs these packages, if any are named.
install_packages() {
  [ -n "$1" ] || return 0
  say "Installing $1 (Debian packages)"
  local log
  log=$(mktemp)
  # shellcheck disable=SC2086 # they are words
  if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 $1; } >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "apt-get could not install $1"
  fi
  rm -f "$log"
}

# Sets kubectl: that of the tests' Kubernetes, or the machine's.
need_kubectl() {
  kubectl=$CACHE/tools/kubelet-$KUBERNETES_VERSION/bin/kubectl
  [ -x "$kubectl" ] || kubectl=$(command -v kubectl) ||
    die "kubectl is not installed: install it, or run scripts/cluster build"
}

# of_person PATH…: gives what root has made to the person who runs sudo, if it is in the checkout.
of_person() {
  local path
  if [ "$(id -u)" != 0 ] || [ -z "${SUDO_UID:-}" ]; then return; fi
  for path; do
    [ -e "$path" ] || continue
    case $(realpath --no-symlinks -- "$path") in
      "$ROOT"/*) chown --recursive --no-dereference "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" "$path" ;;
    esac
  done
}

# The filesystem tools the driver itself runs.
need_filesystem_tools() {
  need_packages mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs blkid=util-linux \
    losetup=mount
}

# Finds cargo and go, also where sudo has cut the PATH, and keeps what root builds out of the
# user's own caches.
need_toolchain() {
  local home
  if [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
    home=$(getent passwd "$SUDO_USER" | cut -d: -f6)
    PATH=$PATH:$home/.cargo/bin:$home/go/bin
    if [ -z "${RUSTUP_HOME:-}" ] && [ -d "$home/.rustup" ]; then
      export RUSTUP_HOME=$home/.rustup CARGO_HOME=$CACHE/cargo
    fi
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
  fi
  PATH=$PATH:$HOME/.cargo/bin:/usr/local/go/bin:/usr/local/cargo/bin
  export PATH
  command -v cargo >/dev/null || die "cargo is not there: install Rust 1.89 or newer"
  need_packages cc=gcc
  # loopdev's bindings are made with libclang; libclang-cpp, which LLVM's tools bring, is another.
  if ! compgen -G '/usr/lib/llvm-*/lib/libclang[.-][0-9s]*' >/dev/null &&
    ! compgen -G '/usr/lib/*/libclang[.-][0-9s]*' >/dev/null; then
    need_packages /nonexistent=libclang-dev
  fi
  TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
}

# build_tool NAME VERSION COMMAND…: runs COMMAND with its output folder as the last word, unless
# that version is built already; prints the program. A second caller waits for the first.
build_tool() {
  local name=$1 version=$2
  shift 2
  local folder=$CACHE/tools/$name-$version
  if [ ! -x "$folder/bin/$name" ]; then
    mkdir -p "$CACHE/tools"
    (
      flock 8
      [ -x "$folder/bin/$name" ] || make_tool "$@" 8<&-
    ) 8>"$folder.lock" || return
    rm -f "$folder.lock"
  fi
  echo "$folder/bin/$name"
}

# make_tool COMMAND…: the part of build_tool that builds.
make_tool() {
  say "Building $name $version, once (kept in $folder)" >&2
  rm -rf "$folder.part"
  mkdir -p "$folder.part"
  "$@" "$folder.part" >"$folder.log" 2>&1 || {
    tail -30 "$folder.log" >&2
    die "$name could not be built"
  }
  rm -rf "$folder"
  mv "$folder.part" "$folder"
}

# stripped_image PROGRAM ARCHIVE: makes the image of a program, unless it is newer than the program.
# Without its symbols a debug build is half as large, and the image is sooner on the nodes.
stripped_image() {
  local stripped
  [ ! "$2" -nt "$1" ] || return 0
  stripped=$(dirname "$2")/hostloop-stripped
  mkdir -p "$(dirname "$2")"
  strip -o "$stripped" "$1"
  "$ROOT/scripts/image" --binary "$stripped" --output "$2"
}

# The Go compiler, with rare garbage collections: they take a fifth of its time.
GO=(env GOGC=400 go)
# Without debug information, which the linker would drop anyway, compiling takes a fifth less.
GO_FLAGS=(-trimpath -gcflags=all=-dwarf=false)

# go_build MODULE OUT LDFLAGS PACKAGE…: builds these packages of a Go module beneath test/ into OUT.
# Programs share compiled packages if they have the same flags and the same versions of what they share.
# So the tools of the tests are one module, test/tools.
go_build() {
  local module=$1 out=$2 ldflags=$3
  shift 3
  command -v go >/dev/null || die "go is not there: the tests' tools are Go programs, install Go 1.26+"
  mkdir -p "$(dirname "$out")"
  (cd "$ROOT/test/$module" && "${GO[@]}" build "${GO_FLAGS[@]}" -ldflags "-s -w $ldflags" -o "$out" "$@")
}

build_cargo_deny() {
  # It runs for seconds. Optimising it would take minutes, and debug information one more.
  env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked \
    --version "$CARGO_DENY_VERSION" cargo-deny --root "$1"
}

# go_tools NAME…: prints the folder of these tools of test/tools/go.mod. The sums of its modules are
# their version in the cache. The first NAME is the folder's, so no other list may begin with it.
go_tools() {
  local version first
  version=$(sha256sum <"$ROOT/test/tools/go.sum" | cut -c1-12)
  first=$(build_tool "$1" "$version" build_go_tools "$@") || return
  dirname "$first"
}

build_go_tools() { # NAME… OUT
  local name packages=() out=${*: -1}
  for name in "${@:1:$#-1}"; do
    packages+=("$(sed -n "s/^\t\([^ ]*\/$name\)$/\1/p" "$ROOT/test/tools/go.mod")")
  done
  go_build tools "$out/bin/" "" "${packages[@]}"
}

# Prints the folder of upstream's sidecars.
sidecars() { go_tools csi-attacher csi-provisioner csi-resizer csi-snapshotter snapshot-controller; }

# The module of the Go host-path driver.
HOST_PATH_MODULE=github.com/kubernetes-csi/csi-driver-host-path

# What to say where has_host_path is false.
NO_HOST_PATH="the host-path driver's module can't be downloaded (no Go, or the module proxy refuses it): set \
HOSTLOOP_HOST_PATH to its program"

# True if host_path has what it needs: its result, or the module.
has_host_path() {
  if [ -n "${HOSTLOOP_HOST_PATH:-}" ]; then return 0; fi
  if [ -x "$CACHE/tools/hostpathplugin-$(host_path_version)/bin/hostpathplugin" ]; then return 0; fi
  if ! command -v go >/dev/null; then return 1; fi
  (cd "$ROOT/test/host-path" && go mod download "$HOST_PATH_MODULE") >/dev/null 2>&1
}

host_path_version() { module_version host-path "$HOST_PATH_MODULE"; }

# Prints the Go host-path driver, which the tests have as the driver of another author: the program
# HOSTLOOP_HOST_PATH, or that of its module. It is in a module of its own, with an older CSI than the tools.
host_path() {
  if [ -n "${HOSTLOOP_HOST_PATH:-}" ]; then
    echo "$HOSTLOOP_HOST_PATH"
    return
  fi
  build_tool hostpathplugin "$(host_path_version)" build_host_path
}

build_host_path() {
  go_build host-path "$1/bin/" "-X main.version=v$(host_path_version)" "$HOST_PATH_MODULE/cmd/hostpathplugin"
}

# Prints the mock driver of Kubernetes' end-to-end suite, the other driver of another author.
mock_driver() {
  local version
  version=$(cat "$ROOT"/test/tools/{go.sum,mock-driver/main.go} | sha256sum | cut -c1-12)
  build_tool mock-driver "$version" build_mock_driver
}

build_mock_driver() { go_build tools "$1/bin/" "" ./mock-driver; }

# Prints the client of Kubernetes' external-snapshot-metadata.
snapshot_metadata_client() {
  local version
  version=$(cat "$ROOT"/test/tools/{go.sum,snapshot-metadata-client/main.go} | sha256sum | cut -c1-12)
  build_tool snapshot-metadata-client "$version" build_snapshot_metadata_client
}

build_snapshot_metadata_client() { go_build tools "$1/bin/" "" ./snapshot-metadata-client; }

# Prints the folder of images with databases, for the pods of tests: sqlite.tar and postgresql.tar.
database_images() {
  local version marker
  # Their names are those in the examples.
  version=$(cat "$ROOT"/{test/database-images,deploy/examples/explore/*.yaml} | sha256sum | cut -c1-12)
  marker=$(build_tool database-images "$version" build_database_images) || return
  dirname "$(dirname "$marker")"
}

build_database_images() {
  "$ROOT/test/database-images" "$1" && mkdir "$1/bin" && touch "$1/bin/database-images" &&
    chmod +x "$1/bin/database-images"
}

# Prints Prometheus' promtool.
promtool() { type -P promtool || build_tool promtool debian build_promtool; }

# Takes promtool out of Debian's package. To install the package would start a server, and to compile
# promtool takes minutes.
build_promtool() {
  command -v apt-get >/dev/null || die "promtool is not there: install Prometheus"
  mkdir "$1/bin" &&
    (cd "$1" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) &&
    dpkg-deb --fsys-tarfile "$1"/prometheus_*.deb |
    tar --extract --file - --directory "$1/bin" --strip-components 3 ./usr/bin/promtool &&
    rm "$1"/prometheus_*.deb
}

# Prints the commit of the last release.
last_commit() { grep --invert-match '^#' "$ROOT/test/upgrade/last-release"; }

# True if last_release has what it needs: its result, or the commit in git's history.
has_last_release() {
  local commit
  commit=$(last_commit)
  [ -x "$CACHE/tools/hostloop-$commit/bin/hostloop" ] ||
    git -C "$ROOT" cat-file -e "$commit^{commit}" 2>/dev/null
}

# Prints the folder of the last release: its files are in tree/, its image is image.tar.
last_release() {
  local commit program
  commit=$(last_commit)
  program=$(build_tool hostloop "$commit" build_last_release "$commit") || return
  dirname "$(dirname "$program")"
}

# build_last_release COMMIT FOLDER: a debug build, which takes minutes less. The image has the tools
# of today's image, because Debian does not serve old packages for long.
build_last_release() {
  local commit=$1 folder=$2 image=hostloop.csi.dev/hostloop:last-release
  need_toolchain
  need_packages strip=binutils
  mkdir -p "$folder/bin" "$folder/tree"
  git -C "$ROOT" archive "$commit" | tar --extract --directory "$folder/tree" &&
    (cd "$folder/tree" && env -u RUSTC_WORKSPACE_WRAPPER CARGO_TARGET_DIR="$folder/target" \
      cargo build --locked --package hostloop-driver --bin hostloop) &&
    strip -o "$folder/bin/hostloop" "$folder/target/debug/hostloop" &&
    rm -r "$folder/target" &&
    "$ROOT/scripts/image" --binary "$folder/bin/hostloop" --name "$image" \
      --output "$folder/image.tar" &&
    rm "$folder/image.tar.gz"
}

# Prints all loop devices and mounts, to compare before and after.
kernel_state() {
  losetup --list --raw --noheadings --output NAME,BACK-FILE 2>/dev/null | sort
  # Mounts of loop devices, and those of other mounts the driver makes.
  awk '$1 ~ /^\/dev\/loop/ || $2 ~ /hostloop/ {print $1, $2}' /proc/self/mounts | sort
}
