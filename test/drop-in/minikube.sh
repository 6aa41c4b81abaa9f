# shellcheck shell=bash
# minikube's addons volumesnapshots and csi-hostpath-driver, and the test of both. The addon of host-path
# has one pod per node, so its snapshot controller marks snapshots with their nodes.

before() {
  kubectl apply -k deploy/crds
  served
  sed 's/--leader-election=true/--leader-election=true, --enable-distributed-snapshotting=true/' \
    "$HOST_PATH/snapshot-controller.yaml" | kubectl apply -n kube-system -f -
}

labelled() { kubectl get pods --all-namespaces -l kubernetes.io/minikube-addons=csi-hostpath-driver -o name; }
has_its_pods() { [ -n "$(labelled)" ]; }

# What `minikube addons enable` and its test wait for: pods with this label.
after() {
  local tries=300
  until has_its_pods; do
    [ $((tries--)) -gt 0 ]
    sleep 1
  done
  kubectl wait --for=condition=Ready pod --namespace=kube-system --timeout=6m \
    --selector=kubernetes.io/minikube-addons=csi-hostpath-driver
}

uses() {
  kubectl apply -f "$HOST_PATH/snapshotclass.yaml"
  claim hpvc csi-hostpath-sc 1Gi
  bound hpvc
  pod hpvc
  writes hpvc before
  snapshot new-snapshot-demo hpvc csi-hostpath-snapclass
  kubectl delete pod hpvc
  claim hpvc-restore csi-hostpath-sc 1Gi "$(from new-snapshot-demo)"
  bound hpvc-restore
  pod hpvc-restore
  reads hpvc-restore before
}

back() {
  kubectl delete -n kube-system -f "$HOST_PATH/snapshot-controller.yaml"
  kubectl delete -k deploy/crds
}
