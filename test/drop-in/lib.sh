# shellcheck shell=bash
# What the tables of commands share. test/tests/hostpath sources this file and one table, and calls its
# functions in turn, in the folder of the checkout:
#
#   before    what the project's script types before the driver: the snapshot API and its controller
#   after     what it types after the driver: classes, annotations, waiting
#   uses      the claims and snapshots of its tests, with a small program in place of its own
#   back      takes back what `before` and `after` did outside namespaces of their own
#
# Scripts apply files from the network. Files here with the same objects stand for them: those in
# host-path, and deploy/crds.

HOST_PATH=test/drop-in/host-path
SNAPSHOT_API=deploy/crds/snapshot.storage.k8s.io

# The driver, one way or the other. The overlay is one line in place of a script's own.
by_overlay() { kubectl apply -k deploy/overlays/csi-hostpath; }
# What host-path's deploy.sh applies, unchanged. Its image is hostloop's.
by_image() {
  kubectl apply -f "$HOST_PATH/driverinfo.yaml"
  kubectl apply -f "$HOST_PATH/plugin.yaml"
  kubectl apply -f "$HOST_PATH/snapshotclass.yaml"
}
by_addon() { kubectl apply -f "$HOST_PATH/addon.yaml"; }

# A download comes between a kind and its first object. Here nothing does.
served() { kubectl wait --for=condition=Established --timeout=300s crd --all; }

# three_kinds VERB: the kinds of the snapshot API, without those of groups.
three_kinds() {
  kubectl "$1" -f "${SNAPSHOT_API}_volumesnapshotclasses.yaml"
  kubectl "$1" -f "${SNAPSHOT_API}_volumesnapshotcontents.yaml"
  kubectl "$1" -f "${SNAPSHOT_API}_volumesnapshots.yaml"
}

# What host-path's deploy.sh waits for: each StatefulSet with this label has a ready pod.
deploy_sh_waits() {
  local set sets tries=300
  sets=$(kubectl get statefulsets -l app.kubernetes.io/instance=hostpath.csi.k8s.io \
    -o jsonpath='{range .items[*]}{" "}{.metadata.name}{end}')
  [ -n "$sets" ]
  for set in $sets; do
    until [ "$(kubectl get "statefulset/$set" -o jsonpath='{.status.readyReplicas}')" = 1 ]; do
      [ $((tries--)) -gt 0 ]
      sleep 1
    done
  done
}

# pod CLAIM: a pod of the claim's name, with its volume at /data.
pod() {
  kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: busybox:1
      command: [sleep, '1000000']
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $1}}]
YAML
  kubectl wait --for=condition=Ready "pod/$1" --timeout=300s
}

# claim NAME CLASS SIZE [LINE]: one with ReadWriteOnce. Without a class, the default one makes it.
claim() {
  kubectl apply -f - <<YAML
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  ${2:+storageClassName: $2}
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: $3}}
  ${4:-}
YAML
}

# The line of a claim that is restored from this snapshot.
from() { echo "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: $1}"; }

# snapshot NAME CLAIM [CLASS]: waits until it is ready. Without a class, the default one makes it.
snapshot() {
  kubectl apply -f - <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec:
  ${3:+volumeSnapshotClassName: $3}
  source: {persistentVolumeClaimName: $2}
YAML
  kubectl wait --for=jsonpath='{.status.readyToUse}'=true "volumesnapshot/$1" --timeout=300s
}

bound() { kubectl wait --for=jsonpath='{.status.phase}'=Bound "pvc/$1" --timeout=300s; }
writes() { kubectl exec "$1" -- sh -c "echo $2 >/data/file && sync /data/file"; }
reads() { [ "$(kubectl exec "$1" -- cat /data/file)" = "$2" ]; }
# Prints the MiB of the filesystem that the pod has at /data.
mib() { kubectl exec "$1" -- df -Pm /data | awk 'NR == 2 { print $2 }'; }

# backed_up CLAIM CLASS SNAPSHOT_CLASS SIZE: a pod writes, and a restored volume has what it wrote before
# the snapshot. Empty classes are the default ones.
backed_up() {
  claim "$1" "$2" "$4"
  pod "$1"
  writes "$1" before
  snapshot "$1" "$1" "$3"
  writes "$1" after
  claim "$1-restored" "$2" "$4" "$(from "$1")"
  pod "$1-restored"
  reads "$1-restored" before
  reads "$1" after
}
