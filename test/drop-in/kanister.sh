# shellcheck shell=bash
# Kanister: build/local_kubernetes.sh. Its check_csi_hostpath_driver_installed compares what is there with
# what the script has applied: each difference fails it. Its script comments `mountPropagation` out.

before() {
  three_kinds apply
  served
  kubectl apply -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
}

after() {
  deploy_sh_waits
  kubectl apply -f "$HOST_PATH/storageclass.yaml"
}

# The check, which `make test` runs.
checks() {
  three_kinds diff
  kubectl diff -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  kubectl diff -f "$HOST_PATH/storageclass.yaml"
}

uses() {
  checks
  # A snapshot class of the class's driver, and a class that binds at once.
  [ "$(kubectl get sc/csi-hostpath-sc -o jsonpath='{.provisioner} {.volumeBindingMode}')" = \
    "$(kubectl get volumesnapshotclass/csi-hostpath-snapclass -o jsonpath='{.driver}') Immediate" ]
  backed_up kanister-csi-snapshot-test csi-hostpath-sc csi-hostpath-snapclass 1Gi
}

# The manifest as the script changes it.
without_propagation() {
  kubectl apply -f "$HOST_PATH/driverinfo.yaml"
  sed 's/mountPropagation: Bidirectional/#mountPropagation: Bidirectional/g' "$HOST_PATH/plugin.yaml" |
    kubectl apply -f -
  kubectl apply -f "$HOST_PATH/snapshotclass.yaml"
}

# A pod of it has the node's disk in place of its volume.
misses_its_volume() {
  claim lost csi-hostpath-sc 1Gi
  pod lost
  [ "$(mib lost)" -gt 1100 ]
}

back() {
  kubectl delete -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  three_kinds delete
}
