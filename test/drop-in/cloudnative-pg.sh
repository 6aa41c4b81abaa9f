# shellcheck shell=bash
# CloudNativePG: deploy_csi_host_path of hack/testing-tools. Its tests take one class with the annotation
# and one default class, and refuse more. They take snapshots while the database runs.

before() {
  three_kinds apply
  served
  kubectl apply -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
}

after() {
  kubectl apply -f "$HOST_PATH/snapshotclass.yaml"
  kubectl patch volumesnapshotclass csi-hostpath-snapclass \
    -p '{"parameters":{"ignoreFailedRead":"true"}}' --type merge
  kubectl apply -f "$HOST_PATH/storageclass.yaml"
  kubectl annotate storageclass csi-hostpath-sc \
    storage.kubernetes.io/default-snapshot-class=csi-hostpath-snapclass
  local replicas='' available='' tries=300
  until [ -n "$replicas" ] && [ "$replicas" = "$available" ]; do
    [ $((tries--)) -gt 0 ]
    sleep 1
    replicas=$(kubectl get statefulset csi-hostpathplugin -o jsonpath='{.spec.replicas}')
    available=$(kubectl get statefulset csi-hostpathplugin -o jsonpath='{.status.availableReplicas}')
  done
}

# annotated KEY: prints the classes that have this annotation, and its value.
annotated() {
  kubectl get storageclass \
    -o jsonpath="{range .items[*]}{.metadata.name}={.metadata.annotations.${1//./\\.}}{'\n'}{end}" |
    grep -v '=$'
}

uses() {
  [ "$(annotated storage.kubernetes.io/default-snapshot-class)" = csi-hostpath-sc=csi-hostpath-snapclass ]
  [ "$(annotated storageclass.kubernetes.io/is-default-class)" = standard=true ]
  backed_up pgdata csi-hostpath-sc csi-hostpath-snapclass 1Gi
  [ "$(kubectl get volumesnapshotclass csi-hostpath-snapclass -o jsonpath='{.parameters}')" = \
    '{"ignoreFailedRead":"true"}' ]
}

back() {
  kubectl delete -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  three_kinds delete
}
