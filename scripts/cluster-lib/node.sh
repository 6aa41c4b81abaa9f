#!/usr/bin/env bash
# shellcheck disable=SC2153 # what is in capitals, scripts/cluster sets
# Part of scripts/cluster: a node, which is a containerd and a kubelet with their own bridge, subnet,
# cgroup, folder and (except mostly the first) mount namespace (namespace.sh). Nodes are numbered from 1,
# and all their names and addresses follow from the number. Sourced, never run.

node_name() { echo "$NODE_NAME-$1"; }
node_dir() { echo "$DIR/node-$1"; }
node_bridge() { echo "hl$PORT-$1"; }
node_cgroup() { echo "$NAME-$PORT-$1"; }

# Prints the first three bytes of the node's subnet. Each block of 20 ports has four subnets of
# 100.64.0.0/10, so clusters with different ports have different subnets.
node_net() {
  local n=$(((PORT / 20) * 4 + $1 - 1))
  echo "100.$((64 + n / 256)).$((n % 256))"
}

ctr() { # NODE ARGUMENT…
  local i=$1
  shift
  "$CONTAINERD_BIN/ctr" --address "$(node_dir "$i")/containerd.sock" --namespace k8s.io "$@"
}

# Kubelet's directory for device plugins, whatever its root is.
DEVICE_PLUGINS=/var/lib/kubelet/device-plugins

# Prints PIDs of kubelets in this mount namespace; elsewhere the same path is another directory.
kubelets_here() {
  local pid here
  here=$(readlink /proc/self/ns/mnt)
  for pid in $(pgrep -x kubelet || true); do
    [ "$(readlink "/proc/$pid/ns/mnt" 2>/dev/null)" = "$here" ] || continue
    # An ending process has no command line.
    [ -n "$(tr -d '\0' 2>/dev/null <"/proc/$pid/cmdline")" ] || continue
    echo "$pid"
  done
}

# Prints the PID of a kubelet with this root.
kubelet_in() {
  local pid root
  for pid in $(kubelets_here); do
    root=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | sed -n 's/^--root-dir=//p')
    [ "${root:-/var/lib/kubelet}" != "$1" ] || echo "$pid"
  done
}

# Dies if a kubelet's root is in use: `down` unmounts everything there.
need_free_kubelet_dir() {
  local at=$1 until=$((SECONDS + 15)) pid
  # An earlier cluster may still be stopping.
  while pid=$(kubelet_in "$at") && [ -n "$pid$(mounts_below "$at")" ]; do
    if [ $SECONDS -ge $until ]; then
      [ -z "$pid" ] || die "a kubelet (process $pid) uses $at: choose another with --kubelet-dir"
      die "something is mounted at or beneath $at: unmount it, or choose another with --kubelet-dir"
    fi
    sleep 0.3
  done
}

# The bridge exists before any container, because kubelet listens on its address, where the API
# server reaches it without name resolution.
node_network() {
  local i=$1 bridge net
  bridge=$(node_bridge "$i") net=$(node_net "$i")
  ip link add "$bridge" type bridge
  ip address add "$net.1/24" dev "$bridge"
  ip link set "$bridge" up
  # Pods call the API server at its service address, which is redirected to 127.0.0.1. The kernel
  # only accepts such packets from a bridge with route_localnet.
  echo 1 >"/proc/sys/net/ipv4/conf/$bridge/route_localnet"
  api_rule "$i" -A
  mkdir -p "$(node_dir "$i")/cni"
  cat >"$(node_dir "$i")/cni/10-bridge.conflist" <<EOF
{"cniVersion": "1.0.0", "name": "$(node_cgroup "$i")", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$(node_dir "$i")/cni-addresses",
            "ranges": [[{"subnet": "$net.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
}

# api_rule NODE -A|-D: adds or deletes the one packet filter rule of a node.
api_rule() {
  iptables -w 30 -t nat "$2" PREROUTING -i "$(node_bridge "$1")" -d "$SERVICE_API/32" -p tcp \
    --dport 443 -m comment --comment "cluster $NAME" -j DNAT --to-destination "127.0.0.1:$PORT"
}

# kubelet needs its cgroup in every hierarchy.
node_cgroups() {
  local cgroup hierarchy file controller
  cgroup=$(node_cgroup "$1")
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    while read -r controller; do
      # kubelet reports missing controllers itself.
      echo "+$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true
    done < <(tr ' ' '\n' </sys/fs/cgroup/cgroup.controllers)
    mkdir "/sys/fs/cgroup/$cgroup"
    return
  fi
  while read -r hierarchy; do
    mkdir "$hierarchy/$cgroup"
    # A new cpuset is empty: no process can run in it.
    for file in cpuset.cpus cpuset.mems; do
      [ ! -e "$hierarchy/$file" ] || cat "$hierarchy/$file" >"$hierarchy/$cgroup/$file"
    done
  done < <(awk '$3 == "cgroup" {print $2}' /proc/self/mounts)
}

containerd_config() {
  local at
  at=$(node_dir "$1")
  # Keeps as much state as possible in the node's folder.
  # Lowering a container's OOM score needs a capability that may be missing here.
  cat >"$at/containerd.toml" <<EOF
version = 3
root = "$at/containerd"
state = "$at/run"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "$at/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
  path = "$at/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "$PAUSE_IMAGE"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  Root = "$at/runc"
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "$at/cni"
EOF
}

kubelet_config() {
  local at address frequency=10s
  at=$(node_dir "$1") address=$(node_net "$1").1
  [ -z "$FAST" ] || frequency=1s
  # There is no DNS. With an unreachable server, lookups fail at once and kubelet does not warn
  # about each pod.
  cat >"$at/kubelet.yaml" <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
port: 10250
healthzBindAddress: $address
healthzPort: 10248
readOnlyPort: 0
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: false}
  x509: {clientCAFile: "$DIR/certs/ca.crt"}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$(node_cgroup "$1")
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
clusterDNS: [127.0.0.1]
podLogsDir: "$at/pod-logs"
volumePluginDir: "$at/volume-plugins"
containerRuntimeEndpoint: "unix://$at/containerd.sock"
nodeStatusUpdateFrequency: $frequency
featureGates: {${FEATURE_GATES//=/: }}
# No registry has the images, so kubelet must not delete them.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
EOF
}

start_containerd() { # NODE
  inside "$1"
  # containerd finds its shim by PATH.
  PATH=$CONTAINERD_BIN:$PATH start_process "containerd-$1" \
    ${INSIDE[@]+"${INSIDE[@]}"} "$CONTAINERD_BIN/containerd" \
    --config "$(node_dir "$1")/containerd.toml"
  wait_for "containerd-$1" 300 "containerd" ctr "$1" version
}

start_kubelet() { # NODE
  local of_layout
  mapfile -t of_layout < <(layout_flags "$1")
  inside "$1"
  start_process "kubelet-$1" ${INSIDE[@]+"${INSIDE[@]}"} "$KUBE_BIN/kubelet" \
    --kubeconfig="$DIR/certs/kubelet-$1.kubeconfig" --config="$(node_dir "$1")/kubelet.yaml" \
    --hostname-override="$(node_name "$1")" --node-ip="$(node_net "$1").1" \
    --root-dir="$KUBELET_DIR" --cert-dir="$(node_dir "$1")/certs" "${of_layout[@]}"
}

# Makes / a shared mount, as systemd does. Otherwise containers never get mounts that their node
# adds later (HostToContainer). / becomes private again when the last cluster is down.
share_root() {
  (
    flock 9
    [ "$(findmnt --noheadings --output PROPAGATION /)" = private ] || exit 0
    touch "$REGISTRY/root-was-private"
    mount --make-shared /
  ) 9<"$(dirname "$REGISTRY")"
}

# mount_kubelet_dir FOLDER: mounts a folder of the cluster over kubelet's root. Earlier files there
# stay as they are, and kubelet's files disappear with the cluster, however that ends.
mount_kubelet_dir() {
  mkdir -p "$1" "$KUBELET_DIR"
  mount --bind "$1" "$KUBELET_DIR"
  # As a peer of the machine's root, each volume's mount would appear twice, also in the folder.
  mount --make-private "$KUBELET_DIR"
  mount --make-shared "$KUBELET_DIR"
}

# Starts a node that was killed. Its images are still there.
node_start() { # NODE
  ! running "namespace-$1" >/dev/null || die "node $1 runs"
  start_namespace "$1"
  start_containerd "$1"
  start_kubelet "$1"
}

node_up() { # NODE
  local i=$1 at
  at=$(node_dir "$i")
  mkdir -p "$at"
  if has_namespace "$i"; then
    start_namespace "$i"
  else
    # All clusters share this directory.
    [ -e "$DEVICE_PLUGINS" ] || touch "$REGISTRY/device-plugins"
    share_root
    mount_kubelet_dir "$at/kubelet"
  fi
  node_network "$i"
  node_cgroups "$i"
  containerd_config "$i"
  kubelet_config "$i"
  start_containerd "$i"
  load "$i" "$DIR/images/pause.tar"
  load "$i" "$DIR/images/busybox.tar"
  start_kubelet "$i"
}
