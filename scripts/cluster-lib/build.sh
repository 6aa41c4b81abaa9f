#!/usr/bin/env bash
# Part of scripts/cluster: builds the cluster's programs, once for each version.
# Sourced, never run.
# shellcheck disable=SC2034 # its variables are for the scripts that source it

# The Go module of KUBERNETES_VERSION, beneath test/.
KUBERNETES_MODULE=tools
ETCD_VERSION=$(module_version tools go.etcd.io/etcd/server/v3)
CONTAINERD_VERSION=$(module_version tools github.com/containerd/containerd/v2)

# choose_kubernetes MINOR: another version, such as 1.33. Each has a module with its name.
choose_kubernetes() {
  local all
  [ "$1" != "${KUBERNETES_VERSION%.*}" ] || return 0
  KUBERNETES_MODULE=cluster/kubernetes-$1
  all=$(cd "$ROOT/test/cluster" && printf '%s\n' kubernetes-*/ | sed -n 's/^kubernetes-\([0-9.]*\)\/$/\1/p')
  grep --quiet --line-regexp --fixed-strings -- "$1" <<<"$all" ||
    die "there is no module of Kubernetes $1: choose one of $(xargs <<<"$all") and ${KUBERNETES_VERSION%.*}"
  KUBERNETES_VERSION=$(module_version "$KUBERNETES_MODULE" k8s.io/kubernetes)
}

# Paths of the built programs. The pause program is our own, so a hash of its source is its version.
tool_paths() {
  KUBE_BIN=$CACHE/tools/kubelet-$KUBERNETES_VERSION/bin
  ETCD=$CACHE/tools/etcd-$ETCD_VERSION/bin/etcd
  CONTAINERD_BIN=$CACHE/tools/containerd-$CONTAINERD_VERSION/bin
  PAUSE_VERSION=$(sha256sum <"$ROOT/test/cluster/pause/main.go" | cut -c1-12)
  PAUSE=$CACHE/tools/pause-$PAUSE_VERSION/bin/pause
}

# Kubernetes' end-to-end suite, the program that runs its specs in parallel, and the image of its
# pods.
build_suite() {
  mkdir -p "$1/bin"
  (
    cd "$ROOT/test/tools" || return
    nice "${GO[@]}" test -c -vet=off "${GO_FLAGS[@]}" -ldflags "-s -w" -o "$1/bin/e2e.test" k8s.io/kubernetes/test/e2e
  ) &&
    go_build tools "$1/bin/ginkgo" "" github.com/onsi/ginkgo/v2/ginkgo &&
    CGO_ENABLED=0 go_build tools "$1/bin/agnhost" "" k8s.io/kubernetes/test/images/agnhost
}

# Kubernetes' servers are one file that acts by the name of its link, because linking four files takes
# minutes. kubectl, which runs often, would start slower in it. Without an explicit version,
# Kubernetes calls itself v0.0.0 and refuses its own kubelet.
build_kubelet() {
  local v=k8s.io/component-base/version minor=${KUBERNETES_VERSION#1.} server
  local servers=(kube-apiserver kube-controller-manager kube-scheduler kubelet) programs=(./kubernetes)
  minor=${minor%.*}
  # Other versions start their servers in other ways, and are built rarely.
  [ "$KUBERNETES_MODULE" = tools ] ||
    programs=("${servers[@]/#/k8s.io/kubernetes/cmd/}")
  go_build "$KUBERNETES_MODULE" "$1/bin/" \
    "-X $v.gitVersion=v$KUBERNETES_VERSION -X $v.gitMajor=1 -X $v.gitMinor=$minor" \
    "${programs[@]}" k8s.io/kubernetes/cmd/kubectl || return
  for server in "${servers[@]}"; do
    [ -e "$1/bin/$server" ] || ln -s kubernetes "$1/bin/$server"
  done
}

# The package's last element is its module's version, so the program needs another name.
build_etcd() { go_build tools "$1/bin/etcd" "" go.etcd.io/etcd/server/v3; }

build_containerd() {
  go_build tools "$1/bin/" "" \
    github.com/containerd/containerd/v2/cmd/{containerd,ctr,containerd-shim-runc-v2}
}

# Static, because its image has no C library.
build_pause() { CGO_ENABLED=0 go_build cluster/pause "$1/bin/pause" "" .; }

# True if no program is missing.
is_built() {
  [ -x "$KUBE_BIN/kubelet" ] && [ -x "$ETCD" ] && [ -x "$CONTAINERD_BIN/containerd" ] &&
    [ -x "$PAUSE" ]
}

# Builds missing programs. A lock admits one builder, because clusters may start together.
build() {
  tool_paths
  ! is_built || return 0
  PATH=$PATH:/usr/local/go/bin
  mkdir -p "$CACHE/tools"
  (
    flock 9
    build_tool etcd "$ETCD_VERSION" build_etcd
    build_tool containerd "$CONTAINERD_VERSION" build_containerd
    build_tool pause "$PAUSE_VERSION" build_pause
    build_tool kubelet "$KUBERNETES_VERSION" build_kubelet
  ) 9>"$CACHE/tools/.lock" >/dev/null
}
