#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: its objects. Each is a file in $WORK/objects, and is applied from there.
# Sourced, never run.

apply() { # WHAT FILE
  call "kubectl apply -f $(basename "$2")   ($1)" k apply -f "$2"
}

# claim NAME SIZE [CLASS] [LINE-OF-ITS-SPEC…]
claim() {
  local name=$1 size=$2 class=${3:-$CLASS} file=$WORK/objects/$1.yaml
  shift 2
  [ $# = 0 ] || shift
  {
    cat <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: $name
  labels: {demo: "${LABEL:-$name}"}
spec:
  storageClassName: $class
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: $size}}
YAML
    [ $# = 0 ] || printf '  %s\n' "$@"
  } >"$file"
  apply "PersistentVolumeClaim, $size of $class${MADE_OF:+, of $MADE_OF}" "$file"
}

# from_snapshot NAME, from_claim NAME: prints the source of a claim's volume.
from_snapshot() { echo "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: $1}"; }
from_claim() { echo "dataSource: {kind: PersistentVolumeClaim, name: $1}"; }

# pod NAME SCRIPT CLAIM=PATH…: makes a pod on the story's node. A claim below /dev is a device.
pod() {
  local name=$1 script=$2 file=$WORK/objects/pod-$1.yaml pair mounts='' devices='' volumes='' claims
  shift 2
  for pair in "$@"; do
    volumes+="    - {name: ${pair%%=*}, persistentVolumeClaim: {claimName: ${pair%%=*}}}"$'\n'
    case ${pair#*=} in
      /dev/*) devices+="        - {name: ${pair%%=*}, devicePath: ${pair#*=}}"$'\n' ;;
      *) mounts+="        - {name: ${pair%%=*}, mountPath: ${pair#*=}}"$'\n' ;;
    esac
  done
  claims=$(printf '%s, ' "${@%%=*}")
  cat >"$file" <<YAML
apiVersion: v1
kind: Pod
metadata:
  name: $name
spec:
  nodeSelector: {kubernetes.io/hostname: "$HOSTNAME_LABEL"}
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  volumes:
$volumes  containers:
    - name: main
      image: busybox:1
      command: [sh, -c, "$script"]
YAML
  [ -z "$mounts" ] || printf '      volumeMounts:\n%s' "$mounts" >>"$file"
  [ -z "$devices" ] || printf '      volumeDevices:\n%s' "$devices" >>"$file"
  apply "Pod, with ${claims%, }" "$file"
}

# await KIND/NAME WHAT CONDITION: waits for a condition of kubectl wait.
await() { call "kubectl wait $1: $2" k wait "$1" --for="$3" --timeout="$LONG"; }
await_bound() { await "pvc/$1" "Bound" "jsonpath={.status.phase}=Bound"; }
await_ready() { await "pod/$1" "Ready" condition=Ready; }

# in_pod POD COMMAND…
in_pod() {
  local name=$1
  shift
  k exec "$name" -- "$@"
}

# field KIND/NAME JSONPATH
field() { k get "$1" --output "jsonpath=$2"; }
