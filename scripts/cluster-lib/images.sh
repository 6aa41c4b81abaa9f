#!/usr/bin/env bash
# Part of scripts/cluster: images for pods, made without a container engine or a registry.
# Sourced, never run.

PAUSE_IMAGE=hostloop.csi.dev/pause:1
# Not `latest`, because kubelet would ask a registry for it.
BUSYBOX_IMAGE=busybox:1

# image FILE NAME ROOT COMMAND [ENTRYPOINT]: makes a docker archive with one layer, the folder ROOT. NAME
# may be several names, with `", "` between them.
image() {
  local file=$1 name=$2 root=$3 command=$4 entrypoint=${5:+"\"$5\""} work layer
  work=$(mktemp -d "$DIR/images/work.XXXXXX")
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$root" -cf "$work/layer.tar" .
  layer=$(sha256sum <"$work/layer.tar" | cut -d' ' -f1)
  cat >"$work/config.json" <<EOF
{"architecture": "$(dpkg --print-architecture)", "os": "linux",
 "config": {"Entrypoint": [$entrypoint], "Cmd": ["$command"], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
EOF
  echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"layer.tar\"]}]" \
    >"$work/manifest.json"
  tar -C "$work" -cf "$file" config.json manifest.json layer.tar
  rm -r "$work"
}

# busybox_root FOLDER: fills FOLDER with Debian's busybox, its links and its users.
busybox_root() {
  local root=$1
  mkdir -p "$root/bin" "$root/tmp" "$root/etc"
  chmod 1777 "$root/tmp"
  cp "$(command -v busybox)" "$root/bin/busybox"
  local applet
  while read -r applet; do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
  done < <("$root/bin/busybox" --list)
  printf 'root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
}

make_images() {
  local root=$DIR/images/root
  mkdir -p "$DIR/images/pause"
  cp "$PAUSE" "$DIR/images/pause/pause"
  image "$DIR/images/pause.tar" "$PAUSE_IMAGE" "$DIR/images/pause" /pause
  busybox_root "$root"
  image "$DIR/images/busybox.tar" "$BUSYBOX_IMAGE" "$root" /bin/sh
}

# load NODE FILE: imports an archive into a node.
load() {
  local said
  said=$(ctr "$1" images import "$2" 2>&1) || die "$2 could not be imported into node $1: $said"
}
