# shellcheck shell=bash
# Velero: the classes of test/testdata for kind, with the driver as their provisioner. They have a
# parameter of another driver. The snapshot class is found by its label.

before() {
  three_kinds apply
  served
  kubectl apply -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
}

after() {
  local name
  deploy_sh_waits
  for name in e2e-storage-class e2e-storage-class-2; do
    kubectl apply -f - <<YAML
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $name}
provisioner: hostpath.csi.k8s.io
parameters: {type: pd-standard}
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
YAML
  done
  kubectl apply -f - <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata:
  name: e2e-volume-snapshot-class
  labels: {velero.io/csi-volumesnapshot-class: "true"}
driver: hostpath.csi.k8s.io
deletionPolicy: Delete
YAML
}

uses() {
  # One class with the label for this driver: more would be an error.
  [ "$(kubectl get volumesnapshotclass -l velero.io/csi-volumesnapshot-class=true -o name | wc -l)" = 1 ]
  backed_up kibishii e2e-storage-class e2e-volume-snapshot-class 1Gi
}

back() {
  kubectl delete sc/e2e-storage-class sc/e2e-storage-class-2
  kubectl delete volumesnapshotclass/e2e-volume-snapshot-class
  kubectl delete -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  three_kinds delete
}
