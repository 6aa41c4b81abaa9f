#!/usr/bin/env bash
# Of scripts/cluster: taking everything down again, from whatever state it is in: what never came
# up is no error. Sourced, never run.

# The mounts at or beneath a folder, the last made first.
mounts_below() {
  awk -v at="$1" '$5 == at || index($5, at "/") == 1 {print $5}' /proc/self/mountinfo | tac
}

# Each loop device in use: its name, the device and inode of its file, and the file's path, which
# losetup pads and escapes.
loop_table() {
  losetup --list --noheadings --raw --output NAME,BACK-MAJ:MIN,BACK-INO,BACK-FILE |
    sed -E 's/ (\\x20)*([0-9]+:[0-9]+)(\\x20)* / \2 /'
}

# The loop devices of the first node: those mounted beneath its folder, those bound there as a
# block device, and those whose file is there.
loops_below() {
  local at=$1 device number inode file
  awk -v at="$at" '($5 == at || index($5, at "/") == 1) {
    for (i = 6; i < NF; i++) if ($i == "-") break
    if ($(i + 2) ~ /^\/dev\/loop/) print $(i + 2)
    if ($(i + 1) == "devtmpfs" && $4 ~ /^\/loop[0-9]+$/) print "/dev" $4
  }' /proc/self/mountinfo
  while read -r device number inode file; do
    case $file in "$at"/*) ! is_file "$number" "$inode" "$file" || echo "$device" ;; esac
  done < <(loop_table)
}

# is_file DEVICE INODE PATH: whether the file at this path is that one. In another mount namespace
# the same path is another file's. A file that is deleted had its device in common with its folder.
is_file() {
  local at=$3
  if [ -e "$3" ]; then
    [ "$(stat --format '%Hd:%Ld %i' "$3")" = "$1 $2" ]
  else
    [[ $3 == *'(deleted)' ]] || return 1
    until [ -e "$at" ]; do at=$(dirname "$at"); done
    [ "$(stat --format '%Hd:%Ld' "$at")" = "$1" ]
  fi
}

# unmount_below FOLDER…: volumes lie on loop devices whose files lie on other mounts, so what
# cannot go yet goes in a later round.
unmount_below() {
  local at loops left
  loops=$(for at in "$@"; do loops_below "$at"; done | sort -u)
  for _ in $(seq 20); do
    left=''
    for at in "$@"; do
      while read -r mounted; do
        umount "$(printf '%b' "$mounted")" 2>/dev/null || true
      done < <(mounts_below "$at")
      left+=$(mounts_below "$at")
    done
    for at in $loops; do
      # A device that is mounted still is let go when it no longer is.
      if losetup "$at" >/dev/null 2>&1; then losetup --detach "$at" 2>/dev/null || true; fi
    done
    [ -n "$left" ] || return 0
    sleep 0.3
  done
  note "still mounted: $left"
  return 1
}

# Every kubelet has its device plugin socket below /var/lib/kubelet, whatever its root is. Another
# cluster's socket keeps this cluster's mount busy: unmount lazily, so that it ends with that
# socket.
leave_kubelet_dir() {
  [ "$(mounts_below "$KUBELET_DIR")" = "$KUBELET_DIR" ] && [ -n "$(kubelets_here)" ] &&
    umount --lazy "$KUBELET_DIR"
}

# Every process in a node's cgroup runs in one of its containers.
kill_containers() {
  local procs pid any
  for _ in $(seq 50); do
    any=''
    while read -r procs; do
      while read -r pid; do
        any=1
        kill -KILL "$pid" 2>/dev/null || true
      done < <(cat "$procs" 2>/dev/null)
    done < <(find /sys/fs/cgroup -path "*/$(node_cgroup "$1")/*" -name cgroup.procs 2>/dev/null)
    [ -n "$any" ] || return 0
    sleep 0.1
  done
}

# The shims of a node's containerd name its socket; theirs are in a folder all containerds share.
kill_shims() {
  local at pid socket
  at=$(node_dir "$1")
  for socket in $(sed -n 's/.*"address": *"unix:\/\/\([^"]*\)".*/\1/p' \
    "$at"/run/io.containerd.runtime.v2.task/k8s.io/*/bootstrap.json 2>/dev/null || true); do
    rm -f "$socket"
  done
  for pid in $(pgrep -x containerd-shim || true); do
    if tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$at/containerd.sock"; then
      kill -KILL "$pid" 2>/dev/null || true
    fi
  done
}

remove_cgroups() {
  local name hierarchy
  name=$(node_cgroup "$1")
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -d "$hierarchy/$name" ] || continue
    # Only folders can be removed here, and only with no process left in them.
    for _ in $(seq 20); do
      find "$hierarchy/$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$hierarchy/$name" ] || break
      sleep 0.1
    done
  done
}

# What CNI and kubelet write at places that cannot be chosen.
remove_traces() {
  local file sandbox link
  for file in "/var/lib/cni/results/$(node_cgroup "$1")"-*-eth0; do
    [ -f "$file" ] || continue
    sandbox=${file%-eth0} sandbox=${sandbox##*-}
    # That of its loopback is named by the sandbox alone.
    rm -f "$file" "/var/lib/cni/results/cni-loopback-$sandbox-lo"
  done
  for link in /var/log/containers/*; do
    [ -L "$link" ] || continue
    case $(readlink "$link") in "$(node_dir "$1")"/*) rm -f "$link" ;; esac
  done
}

# What kubelet leaves at the one place it does not take its root for: with the last kubelet, and
# only if it was not there before the first.
remove_device_plugins() {
  [ -e "$REGISTRY/device-plugins" ] && [ -z "$(kubelets_here)" ] || return 0
  rm -f "$REGISTRY/device-plugins"
  rm -f "$DEVICE_PLUGINS"/{kubelet.sock,kubelet_internal_checkpoint,DEPRECATION}
  rmdir "$DEVICE_PLUGINS" "$(dirname "$DEVICE_PLUGINS")" 2>/dev/null || true
}

node_down() { # NODE
  local i=$1
  # Kubelet first: it would start again what is killed.
  stop_process "kubelet-$i" KILL
  stop_process "containerd-$i" KILL
  kill_shims "$i"
  kill_containers "$i"
  if has_namespace "$i"; then
    namespace_down "$i" || return 1
  elif [ -d "$(node_dir "$i")" ]; then
    unmount_below "$KUBELET_DIR" "$(node_dir "$i")" || leave_kubelet_dir || return 1
    rmdir "$KUBELET_DIR" 2>/dev/null || true
    remove_device_plugins
  fi
  remove_cgroups "$i"
  remove_traces "$i"
  while api_rule "$i" -D 2>/dev/null; do :; done
  ip link delete "$(node_bridge "$i")" 2>/dev/null || true
}

# Nothing here needs an orderly end: all the data goes too.
take_down() {
  local i part
  for i in $(seq "$NODES"); do node_down "$i" || return 1; done
  for part in scheduler controller-manager apiserver etcd; do stop_process "$part" KILL; done
  rm -rf --one-file-system "${DIR:?}"
  release_ports
}
