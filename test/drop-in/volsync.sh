# shellcheck shell=bash
# VolSync: hack/setup-kind-cluster.sh. `create` fails if the snapshot API is there already. The classes
# become the default ones, so its claims and snapshots name none. Its disk-to-disk tests have raw blocks.
#
# Not typed: the validator of volume populators, which no driver needs.

before() {
  kubectl create -k deploy/crds
  served
  kubectl create -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
}

after() {
  deploy_sh_waits
  kubectl apply -f "$HOST_PATH/storageclass.yaml"
  kubectl annotate sc/standard storageclass.kubernetes.io/is-default-class-
  kubectl annotate sc/csi-hostpath-sc storageclass.kubernetes.io/is-default-class="true"
  kubectl annotate volumesnapshotclass/csi-hostpath-snapclass \
    snapshot.storage.kubernetes.io/is-default-class="true"
  kubectl label nodes --all topology.kubernetes.io/zone=z1
}

uses() {
  # hack/ensure-default-csi.sh looks for a default class with a name like this.
  kubectl get sc/csi-hostpath-sc -o jsonpath='{.provisioner}' | grep '.*csi.*'
  backed_up data '' '' 1Gi
  [ "$(kubectl get pvc/data -o jsonpath='{.spec.storageClassName}')" = csi-hostpath-sc ]
  claim blocks '' 64Mi 'volumeMode: Block'
  bound blocks
  snapshot blocks blocks
  claim blocks-restored '' 64Mi "$(printf '%s\n  volumeMode: Block' "$(from blocks)")"
  bound blocks-restored
}

back() {
  kubectl label nodes --all topology.kubernetes.io/zone-
  kubectl annotate sc/standard storageclass.kubernetes.io/is-default-class="true"
  kubectl delete -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  kubectl delete -k deploy/crds
}
