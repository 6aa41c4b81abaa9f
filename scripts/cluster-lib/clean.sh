#!/usr/bin/env bash
# Part of scripts/cluster: stops a cluster from any state. Parts that never started are skipped.
# Sourced, never run.

# Prints the mounts at or beneath a folder, the newest first.
mounts_below() {
  awk -v at="$1" '$5 == at || index($5, at "/") == 1 {print $5}' /proc/self/mountinfo | tac
}

# Prints each loop device in use: its name, the device and inode of its file, and the file's path.
# losetup pads and escapes the path.
loop_table() {
  losetup --list --noheadings --raw --output NAME,BACK-MAJ:MIN,BACK-INO,BACK-FILE |
    sed -E 's/ (\\x20)*([0-9]+:[0-9]+)(\\x20)* / \2 /'
}

# The same without paths: it tells whether a device still has its file.
loop_files() { loop_table | cut -d ' ' -f 1-3; }

# Prints the first node's loop devices, as loop_files does: mounted beneath its folder, bound there
# as a block device, or attached to a file in it.
loops_below() {
  local at=$1 mounted device number inode file
  mounted=$(awk -v at="$at" '($5 == at || index($5, at "/") == 1) {
    for (i = 6; i < NF; i++) if ($i == "-") break
    if ($(i + 2) ~ /^\/dev\/loop/) print $(i + 2)
    if ($(i + 1) == "devtmpfs" && $4 ~ /^\/loop[0-9]+$/) print "/dev" $4
  }' /proc/self/mountinfo)
  while read -r device number inode file; do
    if grep -qxF -e "$device" <<<"$mounted"; then
      echo "$device $number $inode"
    else
      case $file in
        "$at"/*) ! is_file "$number" "$inode" "$file" || echo "$device $number $inode" ;;
      esac
    fi
  done < <(loop_table)
}

# detach DEVICE NUMBER INODE: detaches the device if it still has this file. Its number may be in use
# again. While the device is open here, the kernel attaches no other file to it.
detach() {
  # shellcheck disable=SC2094 # nothing is read: the device is only held open
  { [[ $'\n'$(loop_files)$'\n' != *$'\n'"$*"$'\n'* ]] || losetup --detach "$1"; } 2>/dev/null <"$1" ||
    true
}

# detach_above DEVICE NUMBER INODE: detaches the devices that stand on the device or on a file in its
# filesystem, if the device still has this file. In a mount namespace that has ended, a backing file's path
# tells nothing. As in detach, the device is open here, so what stands on it is not of others.
detach_above() {
  local below loops device number inode
  # shellcheck disable=SC2094 # nothing is read: the device is only held open
  {
    # Two lines: as a backing file, and as the place of a filesystem.
    below=$'\n'$(stat --printf '%Hd:%Ld %i\n%Hr:%Lr\n' "$1")$'\n'
    loops=$'\n'$(loop_files)$'\n'
    [[ $loops == *$'\n'"$*"$'\n'* ]] || return 0
    while read -r device number inode; do
      case $below in
        *$'\n'"$number $inode"$'\n'* | *$'\n'"$number"$'\n'*)
          detach_above "$device" "$number" "$inode"
          detach "$device" "$number" "$inode"
          ;;
      esac
    done <<<"$loops"
  } 2>/dev/null <"$1" || true
}

# is_file DEVICE INODE PATH: true if this path leads to that file. In another mount namespace the
# path may lead to another file. A deleted file had the same device as its folder.
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

# unmount_below FOLDER…: repeats, because files of loop devices lie on other mounts, which only
# unmount after the devices are detached.
unmount_below() {
  local at loops left device number inode
  loops=$(for at in "$@"; do loops_below "$at"; done | sort -u)
  for _ in $(seq 20); do
    left=''
    for at in "$@"; do
      while read -r mounted; do
        umount "$(printf '%b' "$mounted")" 2>/dev/null || true
      done < <(mounts_below "$at")
      left+=$(mounts_below "$at")
    done
    # The kernel detaches a mounted device after its unmount, and may give its number away.
    while read -r device number inode; do
      [ -z "$device" ] || detach "$device" "$number" "$inode"
    done <<<"$loops"
    [ -n "$left" ] || return 0
    sleep 0.3
  done
  note "still mounted: $left"
  return 1
}

# Every kubelet has its device plugin socket below /var/lib/kubelet, whatever its root is. Another
# cluster's socket keeps this mount busy. A lazy unmount lets the mount end with that socket.
leave_kubelet_dir() {
  [ "$(mounts_below "$KUBELET_DIR")" = "$KUBELET_DIR" ] && [ -n "$(kubelets_here)" ] &&
    umount --lazy "$KUBELET_DIR"
}

# Every process in a node's cgroup runs in one of its containers.
kill_containers() {
  local procs pid any
  for _ in $(seq 600); do
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

# Shims name their containerd's socket in their arguments; their own sockets share one folder.
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
    # cgroupfs only removes directories without processes.
    for _ in $(seq 100); do
      find "$hierarchy/$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$hierarchy/$name" ] || break
      sleep 0.1
    done
  done
}

# Removes files that CNI and kubelet write to fixed paths.
remove_traces() {
  local file sandbox link
  for file in "/var/lib/cni/results/$(node_cgroup "$1")"-*-eth0; do
    [ -f "$file" ] || continue
    sandbox=${file%-eth0} sandbox=${sandbox##*-}
    # The result file of loopback is named after the sandbox only.
    rm -f "$file" "/var/lib/cni/results/cni-loopback-$sandbox-lo"
  done
  for link in /var/log/containers/*; do
    [ -L "$link" ] || continue
    case $(readlink "$link") in "$(node_dir "$1")"/*) rm -f "$link" ;; esac
  done
}

# Removes kubelet's fixed directory after the last kubelet, unless it existed before the first.
remove_device_plugins() {
  [ -e "$REGISTRY/device-plugins" ] && [ -z "$(kubelets_here)" ] || return 0
  rm -f "$REGISTRY/device-plugins"
  rm -f "$DEVICE_PLUGINS"/{kubelet.sock,kubelet_internal_checkpoint,DEPRECATION}
  rmdir "$DEVICE_PLUGINS" "$(dirname "$DEVICE_PLUGINS")" 2>/dev/null || true
}

# Ends all processes of a node but that of its mount namespace.
end_processes() { # NODE
  # Kubelet first: it would restart killed containers.
  stop_process "kubelet-$1" KILL
  stop_process "containerd-$1" KILL
  kill_shims "$1"
  kill_containers "$1"
}

node_down() { # NODE
  local i=$1
  end_processes "$i"
  if has_namespace "$i"; then
    namespace_down "$i" || return 1
  elif [ -d "$(node_dir "$i")" ]; then
    # On a busy machine, a process that has just ended may keep a mount for longer.
    unmount_below "$KUBELET_DIR" "$(node_dir "$i")" || leave_kubelet_dir ||
      unmount_below "$KUBELET_DIR" "$(node_dir "$i")" || return 1
    rmdir "$KUBELET_DIR" 2>/dev/null || true
    remove_device_plugins
  fi
  remove_cgroups "$i"
  remove_traces "$i"
  while api_rule "$i" -D 2>/dev/null; do :; done
  ip link delete "$(node_bridge "$i")" 2>/dev/null || true
}

# SIGKILL is enough: all data is deleted too.
take_down() {
  local i part
  # A device of one node may be in use on another.
  for i in $(seq "$NODES"); do end_processes "$i"; done
  for i in $(seq "$NODES"); do node_down "$i" || return 1; done
  for part in scheduler controller-manager apiserver etcd; do stop_process "$part" KILL; done
  # The settings go last: without them, nothing finds the cluster again.
  # Another process may take it down as well: that of a test that has ended, and scripts/sweep.
  { find "${DIR:?}" -mindepth 1 -maxdepth 1 ! -name settings -exec rm -rf --one-file-system {} + &&
    rm -rf --one-file-system "$DIR"; } || [ ! -e "$DIR" ] || return 1
  release_ports
}
