#!/usr/bin/env bash
# Part of scripts/cluster: the first process in a node's mount namespace. It makes the node's root,
# changes to it, unmounts the machine's mounts, and keeps running.
#
#   unshare --mount --propagation private own-root.sh rw|ro ROOT VAR KEEP…
#
# ROOT is an empty folder, VAR becomes /var, and each KEEP stays at its path. A KEEP can also be
# PATH:ELSEWHERE. With `ro` only /dev, /proc, /run, /sys, /tmp, /var and each KEEP can be written to.
set -euo pipefail

# Makes the /dev of a privileged container, which shows no device that appears later. It has the
# eight loop devices that every machine has, and no others.
make_devices() { # DEV
  local dev=$1 device
  mount -t tmpfs -o mode=0755,nosuid own-dev "$dev"
  for device in /dev/*; do
    if [ -L "$device" ] || { [ ! -b "$device" ] && [ ! -c "$device" ]; }; then continue; fi
    case $device in
      /dev/ptmx | /dev/console) ;;
      /dev/loop[0-7] | /dev/loop-control) cp -a "$device" "$dev" ;;
      /dev/loop*) ;;
      *) cp -a "$device" "$dev" ;;
    esac
  done
  mkdir "$dev/pts" "$dev/shm" "$dev/mqueue"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 own-pts "$dev/pts"
  mount -t tmpfs -o mode=1777,nosuid,nodev own-shm "$dev/shm"
  mount -t mqueue own-mqueue "$dev/mqueue" || true
  ln -s pts/ptmx "$dev/ptmx"
  ln -s /proc/self/fd "$dev/fd"
  ln -s fd/0 "$dev/stdin"
  ln -s fd/1 "$dev/stdout"
  ln -s fd/2 "$dev/stderr"
}

# Binds the machine's programs and settings without the mounts beneath them. This namespace would keep
# copied mounts busy.
bind_folders() { # ROOT
  local root=$1 folder
  for folder in /*; do
    case $folder in /dev | /proc | /run | /sys | /tmp | /var | /lost+found) continue ;; esac
    if [ -L "$folder" ]; then
      cp -a "$folder" "$root"
    elif [ -d "$folder" ]; then
      mkdir "$root$folder"
      mount --bind "$folder" "$root$folder"
    fi
  done
}

make_root() { # ROOT VAR KEEP…
  local root=$1 var=$2 keep at
  shift 2
  mount -t tmpfs -o mode=0755 own-root "$root"
  bind_folders "$root"
  mkdir "$root"/{dev,proc,run,sys,tmp,var,old}
  make_devices "$root/dev"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount -t tmpfs -o mode=0755 own-run "$root/run"
  mount -t tmpfs -o mode=1777 own-tmp "$root/tmp"
  mount --bind "$var" "$root/var"
  mkdir -p "$root/var/lib" "$root/var/log" "$root/var/tmp"
  chmod 1777 "$root/var/tmp"
  [ -e "$root/var/run" ] || ln -s /run "$root/var/run"
  for keep in "$@"; do
    at=$root${keep#*:}
    [ -e "$at" ] || mkdir -p "$at"
    mount --bind "${keep%%:*}" "$at"
  done
}

# Makes / and the machine's folders read-only. The others are mounts of their own.
make_read_only() {
  local folder
  for folder in /*; do
    case $folder in /dev | /proc | /run | /sys | /tmp | /var) continue ;; esac
    ! findmnt --mountpoint "$folder" >/dev/null || mount -o remount,bind,ro "$folder"
  done
  mount -o remount,bind,ro /
}

main() {
  local mode=$1
  shift
  make_root "$@"
  cd "$1"
  pivot_root . old
  umount --lazy /old
  rmdir /old
  [ "$mode" = rw ] || make_read_only
  # Mounts made in a pod with mountPropagation: Bidirectional must reach this root, and none may leave it.
  mount --make-rshared /
  touch /run/own-root
  exec sleep infinity
}

main "$@"
