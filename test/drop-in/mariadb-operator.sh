# shellcheck shell=bash
# mariadb-operator: make/deploy.mk and hack/install_csi_driver_host_path.sh. Its tests let a volume grow
# while the database runs.

before() {
  kubectl create namespace external-snapshotter
  kubectl apply -k deploy/crds
  served
  kubectl apply -n external-snapshotter -f "$HOST_PATH/snapshot-controller.yaml"
}

after() {
  deploy_sh_waits
  kubectl apply -f "$HOST_PATH/storageclass.yaml"
}

uses() {
  backed_up storage-mariadb-0 csi-hostpath-sc csi-hostpath-snapclass 300Mi
  kubectl patch pvc storage-mariadb-0 -p '{"spec":{"resources":{"requests":{"storage":"400Mi"}}}}'
  kubectl wait --for=jsonpath='{.spec.capacity.storage}'=400Mi --timeout=300s \
    "pv/$(kubectl get pvc storage-mariadb-0 -o jsonpath='{.spec.volumeName}')"
}

# A new pod, for machines on which no mounted ext4 grows. One that comes before kubelet has unstaged the
# volume keeps the mount.
ends() { kubectl delete pod storage-mariadb-0; }
starts_again() { pod storage-mariadb-0; }

has_grown() {
  # A change of the pod has kubelet look at its volumes now, and not a minute later.
  kubectl annotate --overwrite pod storage-mariadb-0 test/look=now
  kubectl wait --for=jsonpath='{.status.capacity.storage}'=400Mi pvc/storage-mariadb-0 --timeout=300s
  [ "$(mib storage-mariadb-0)" -gt 320 ]
}

# host-path's csi-hostpath-testing.yaml, which the newest deploy.sh applies and waits for.
testing() { kubectl apply -f "$HOST_PATH/testing.yaml"; }
no_testing() { kubectl delete -f "$HOST_PATH/testing.yaml"; }

back() {
  kubectl delete -n external-snapshotter -f "$HOST_PATH/snapshot-controller.yaml"
  kubectl delete namespace external-snapshotter
  kubectl delete -k deploy/crds
}
