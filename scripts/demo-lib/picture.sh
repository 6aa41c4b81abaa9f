#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: what the API server and the node report now, and what is new since the step
# before. Sourced, never run.

# Prints the objects of the story's namespace, and those without a namespace that belong to them.
objects() {
  local kinds=pods,pvc,pv,volumeattachments
  [ "$SNAPSHOTS" = no ] ||
    kinds+=,volumesnapshots,volumesnapshotcontents,volumegroupsnapshots,volumegroupsnapshotcontents
  k get "$kinds" --output json | jq --arg ns "$NAMESPACE" '
    [.items[] | select(.kind == "PersistentVolume") | select(.spec.claimRef.namespace == $ns)
      | .metadata.name] as $volumes
    | .items |= map(select(
      if .kind == "PersistentVolume" then .spec.claimRef.namespace == $ns
      elif .kind == "VolumeAttachment" then .spec.source.persistentVolumeName | IN($volumes[])
      elif .kind == "VolumeSnapshotContent" then .spec.volumeSnapshotRef.namespace == $ns
      elif .kind == "VolumeGroupSnapshotContent" then .spec.volumeGroupSnapshotRef.namespace == $ns
      else true end))'
}

# Runs `hostloop status` in the DaemonSet's pod on the node. The container's environment has its pools.
node_status() {
  driver_pod
  kube --namespace hostloop exec "$DRIVER_POD" --container hostloop -- hostloop status "$@"
}

driver_pod() {
  DRIVER_POD=$(kube --namespace hostloop get pods --selector app.kubernetes.io/name=hostloop \
    --field-selector "spec.nodeName=$NODE,status.phase=Running" --output json |
    jq -r '[.items[] | select(.metadata.deletionTimestamp == null)][0].metadata.name // ""')
  [ -n "$DRIVER_POD" ] || {
    echo "no pod of hostloop runs on $NODE" >&2
    return 1
  }
}

# Writes objects.json and status.json, and picture.new made of both. The picture keeps the story's own
# objects apart from those that were there before.
look() {
  objects >"$WORK/objects.json"
  if [ "$INSTALLED" = yes ]; then
    node_status --json >"$WORK/status.json"
  else
    echo null >"$WORK/status.json"
  fi
  [ -f "$WORK/names.json" ] || echo '{}' >"$WORK/names.json"
  jq -n -L "$LIBRARY" --slurpfile objects "$WORK/objects.json" --slurpfile old "$WORK/names.json" \
    'include "picture"; $old[0] + handles($objects[0].items)' >"$WORK/names.new"
  mv "$WORK/names.new" "$WORK/names.json"
  jq -n -L "$LIBRARY" --slurpfile objects "$WORK/objects.json" \
    --slurpfile status "$WORK/status.json" --slurpfile names "$WORK/names.json" \
    --arg kubelet "$KUBELET_DIR" 'include "picture";
    {objects: $objects[0], status: $status[0], names: $names[0]} | [picture($kubelet)]' \
    >"$WORK/picture.new"
}

# Takes the first picture, to compare the next one with.
look_first() { look && mv "$WORK/picture.new" "$WORK/picture.json"; }

# Takes a new picture and prints what has changed.
changes() {
  local sign sort name said color
  look || fail "the cluster or the node could not be looked at"
  jq -cn -L "$LIBRARY" --slurpfile before "$WORK/picture.json" --slurpfile now "$WORK/picture.new" '
    include "picture"; differences($before[0]; $now[0])[]' >"$WORK/changes"
  mv "$WORK/picture.new" "$WORK/picture.json"
  cat "$WORK/changes" >>"$WORK/step-changes"
  jq -r -L "$LIBRARY" 'include "picture";
    [(if .before == null then "+" elif .now == null then "-" else "~" end), .sort, .name, said]
    | join("\u001f")' "$WORK/changes" |
    while IFS=$'\x1f' read -r sign sort name said; do
      case $sign in
        +) color=$GREEN ;;
        -) color=$RED ;;
        *) color=$YELLOW ;;
      esac
      line "$INDENT$color$sign$RESET $DIM$(printf '%-6s' "$sort")$RESET $(brief "$name${said:+  $said}" $((WIDTH - ${#INDENT} - 9)))"
    done
}

# --- facts about a claim, from the last picture ----------------------------------------------------

handle_of() {
  jq -r --arg claim "$1" '[.items[] | select(.kind == "PersistentVolume" and .spec.claimRef.name == $claim)
    | .spec.csi.volumeHandle][0] // ""' "$WORK/objects.json"
}

# loop_of CLAIM: prints the claim's loop device.
loop_of() {
  jq -r --arg id "$(handle_of "$1")" '[.loops[] | select(.object == $id) | .device][0] // ""' "$WORK/status.json"
}

# loop_is CLAIM JQ-CONDITION
loop_is() {
  jq -e --arg id "$(handle_of "$1")" "[.loops[] | select(.object == \$id)] | length == 1 and (.[0] | $2)" \
    "$WORK/status.json"
}

# record_of CLAIM JQ: prints a part of the claim's record.
record_of() {
  jq -r --arg id "$(handle_of "$1")" ".volumes[] | select(.id == \$id) | $2" "$WORK/status.json"
}

# mounts_of CLAIM: prints the number of the claim's mounts.
mounts_of() {
  jq -r --arg id "$(handle_of "$1")" '[.mounts[] | select(.object == $id)] | length' "$WORK/status.json"
}

# Prints the number of objects of a kind.
how_many() { jq --arg kind "$1" '[.items[] | select(.kind == $kind)] | length' "$WORK/objects.json"; }

# Prints losetup's and findmnt's view, if the node is this machine.
kernel_says() {
  local claim=$1 device said
  [ "$MODE" = own ] || return 0
  device=$(loop_of "$claim")
  [ -n "$device" ] || return 0
  said=$(losetup --list --noheadings --raw --output NAME,LOG-SEC,DIO,BACK-FILE "$device" |
    awk '{printf "%s, %s-byte sectors, direct I/O %s, over %s", $1, $2, $3 ? "on" : "off", $4}')
  fact losetup "${said//$KUBELET_DIR\/plugins\/hostloop.csi.dev\//…/}"
  while read -r said; do fact findmnt "${said//$KUBELET_DIR\//}"; done < <(
    findmnt --noheadings --raw --source "$device" --output TARGET,FSTYPE,OPTIONS |
      awk '{split($3, o, ","); printf "%s, %s, %s\n", $1, $2, o[1]}' | sort -u)
}
