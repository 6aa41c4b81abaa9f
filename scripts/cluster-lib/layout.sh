#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is in capitals, the other parts set and use
# Part of scripts/cluster: nodes like those of a distribution, with its directory of kubelet and the
# sign that clients recognise. Sourced, never run.

LAYOUTS='kind minikube k3s k0s microk8s talos'

# choose_layout NAME: the cluster's nodes get this layout.
choose_layout() {
  [[ " $LAYOUTS " == *" $1 "* ]] || die "there is no layout $1: choose one of $LAYOUTS"
  LAYOUT=$1
  case $LAYOUT in
    k0s) KUBELET_DIR=/var/lib/k0s/kubelet ;;
    microk8s) KUBELET_DIR=/var/snap/microk8s/common/var/lib/kubelet ;;
  esac
}

# layout_files NODE: makes what the distribution has on a node before kubelet starts.
layout_files() {
  local var
  var=$(node_var "$1")
  case $LAYOUT in
    microk8s)
      mkdir -p "$var/lib" "$var${KUBELET_DIR#/var}"
      ln -s "$KUBELET_DIR" "$var/lib/kubelet"
      ;;
    # The disk of minikube's machine, of which only some folders are kept.
    minikube) mkdir -p "$var/data" ;;
    talos) echo 'PRETTY_NAME="Talos (layout of a test)"' >"$(node_dir "$1")/os-release" ;;
  esac
}

# layout_root NODE: prints the words for own-root.sh, one a line, after ROOT and VAR.
layout_root() {
  case $LAYOUT in
    minikube) echo "$(node_var "$1")/data:/data" ;;
    talos) echo "$(node_dir "$1")/os-release:/usr/lib/os-release" ;;
  esac
}

# Prints whether the nodes' roots can be written to.
layout_mode() { if [ "$LAYOUT" = talos ]; then echo ro; else echo rw; fi; }

# layout_flags NODE: prints the flags of kubelet, one a line.
layout_flags() {
  case $LAYOUT in
    kind) echo "--provider-id=kind://docker/$NAME/$(node_name "$1")" ;;
    k3s) echo "--provider-id=k3s://$(node_name "$1")" ;;
    microk8s) echo --node-labels=microk8s.io/cluster=true ;;
  esac
}

# Adds the labels that the distribution itself adds to its nodes, because kubelet may not.
layout_labels() {
  [ "$LAYOUT" != minikube ] || kubectl label nodes --all "minikube.k8s.io/name=$NAME" >/dev/null
}
