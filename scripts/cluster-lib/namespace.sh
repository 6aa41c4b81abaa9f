#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is in capitals, the other parts set and use
# Part of scripts/cluster: the mount namespace of every node after the first, like that of a node of
# kind. With a layout, the first node has one, too. Nodes share the kernel and all loop devices. Each has its own /var (with volumes and kubelet's
# root), /run, /tmp, and a copy of /dev from its start: later devices do not appear in it.
# Sourced, never run.

# True if NODE has its own mount namespace.
has_namespace() { [ "$1" != 1 ] || [ -n "$LAYOUT" ]; }

# Prints the path of a node's /var in the machine's namespace.
node_var() { echo "$(node_dir "$1")/var"; }

# inside NODE: sets INSIDE to the words that run a command in the node.
inside() {
  local pid
  INSIDE=()
  has_namespace "$1" || return 0
  pid=$(running "namespace-$1") || die "the mount namespace of node $1 has ended"
  INSIDE=(nsenter --target "$pid" --mount --)
}

# Prints a node's mount table.
node_mounts() {
  local pid=self
  ! has_namespace "$1" || pid=$(running "namespace-$1") || return 0
  cat "/proc/$pid/mountinfo"
}

# Starts a process that only keeps the namespace alive.
start_namespace() { # NODE
  local at of_layout
  at=$(node_dir "$1")
  mkdir -p "$(node_var "$1")" "$at/root"
  layout_files "$1"
  mapfile -t of_layout < <(layout_root "$1")
  start_process "namespace-$1" unshare --mount --propagation private \
    bash "$ROOT/scripts/cluster-lib/own-root.sh" "$(layout_mode)" "$at/root" "$(node_var "$1")" \
    "$DIR" "$CACHE/tools" "${of_layout[@]}"
  wait_for "namespace-$1" 300 "the mount namespace of node $1" namespace_ready "$1"
  # Saved, because it is needed even if the namespace ends early.
  stat --format '%Hd:%Ld' "/proc/$(running "namespace-$1")/root/dev" >"$at/dev-number"
}

# The file is only visible after the change of root.
namespace_ready() {
  local pid
  pid=$(running "namespace-$1") && [ -e "/proc/$pid/root/run/own-root" ]
}

# Prints a node's loop devices: attached to files in its /var, to files on filesystems on such
# devices, or to a device node in its /dev. Paths prove nothing, because all nodes have the same.
namespace_loops() { # NODE
  local var disk nodes
  var=$(node_var "$1") disk=$(stat --format '%Hd:%Ld' "$var")
  nodes=$(cat "$(node_dir "$1")/dev-number" 2>/dev/null || true)
  awk -v disk="$disk" -v device_nodes="$nodes" '
    FILENAME == ARGV[1] { inode[$1] = 1; next }
    FILENAME == ARGV[2] {
      for (i = 6; i < NF; i++) if ($i == "-") break
      source[$3] = $(i + 2)
      next
    }
    { line[$1] = $0; on[$1] = $2; if ($2 == disk && $3 in inode) ours[$1] = 1 }
    END {
      do {
        more = 0
        for (name in on) {
          under = source[on[name]]
          number = on[name]
          if (sub(/^7:/, "/dev/loop", number)) under = number
          if (!(name in ours) && (under in ours || on[name] == device_nodes)) more = ours[name] = 1
        }
      } while (more)
      for (name in ours) print line[name]
    }' <(find "$var" -xdev -type f -printf '%i\n') <(node_mounts "$1") <(loop_files)
  # Those that a killed node has left. Nothing else shows that they are of this node.
  comm -12 <(sort -u "$(node_dir "$1")/left-loops" 2>/dev/null) <(loop_files | sort)
}

# Ends all processes of a node and its mount namespace. Its loop devices stay, as far as something uses
# them: another node, or the kernel.
node_kill() { # NODE
  local pid
  namespace_loops "$1" >>"$(node_dir "$1")/left-loops"
  end_processes "$1"
  if pid=$(running "namespace-$1"); then await_empty_namespace "$1" "$pid" || return 1; fi
  stop_process "namespace-$1" KILL
  # A container engine has what containerd keeps there on a tmpfs.
  rm -rf --one-file-system "$(node_dir "$1")/run"
}

# Ends the namespace and all its mounts, then detaches loop devices that remain.
namespace_down() { # NODE
  local loops='' left pid='' device number inode
  if pid=$(running "namespace-$1"); then
    loops=$(namespace_loops "$1")
    await_empty_namespace "$1" "$pid" || return 1
  elif [ -d "$(node_var "$1")" ]; then
    loops=$(namespace_loops "$1")
  fi
  stop_process "namespace-$1" KILL
  for _ in $(seq 600); do
    left=$(comm -12 <(sort -u <<<"$loops") <(loop_files | sort))
    [ -n "$left" ] || return 0
    while read -r device number inode; do detach "$device" "$number" "$inode"; done <<<"$left"
    sleep 0.2
  done
  note "still attached: $left"
  return 1
}

# Other processes in the namespace would keep its mounts.
await_empty_namespace() { # NODE PID
  local here others pid
  here=$(readlink "/proc/$2/ns/mnt")
  for _ in $(seq 600); do
    others=''
    for pid in /proc/[0-9]*; do
      pid=${pid#/proc/}
      [ "$pid" = "$2" ] || [ "$(readlink "/proc/$pid/ns/mnt" 2>/dev/null)" != "$here" ] || others+=" $pid"
    done
    [ -n "$others" ] || return 0
    sleep 0.1
  done
  note "still in node $1's mount namespace: processes$others"
  return 1
}
