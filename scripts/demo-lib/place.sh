#!/usr/bin/env bash
# shellcheck disable=SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: the cluster (its own, or an existing one), hostloop in it,
# and the removal of both. Sourced, never run.

kube() {
  if [ "$MODE" = own ]; then
    KUBECACHEDIR=$CLUSTER_DIR/kubectl "$KUBECTL" --kubeconfig "$CLUSTER_DIR/kubeconfig" "$@"
  else
    "$KUBECTL" --context "$CONTEXT" "$@"
  fi
}

# Runs kubectl in the story's namespace.
k() { kube --namespace "$NAMESPACE" "$@"; }

cluster() { "$ROOT/scripts/cluster" "$@"; }

# --- before the story: programs and image --------------------------------------------------------

prepare() {
  need_packages jq=jq
  if [ "$MODE" = own ]; then
    tool_paths
    [ ! -e "$CLUSTER_DIR/settings" ] ||
      die "a cluster $CLUSTER is there from an earlier time: sudo ./scripts/cluster down --name $CLUSTER"
    need_filesystem_tools
    KUBECTL=$KUBE_BIN/kubectl
  else
    KUBECTL=$(command -v kubectl) || die "--context needs your kubectl, and there is none"
    # Under sudo, the contexts are the user's.
    if [ -z "${KUBECONFIG:-}" ] && [ -n "${SUDO_USER:-}" ]; then
      KUBECONFIG=$(getent passwd "$SUDO_USER" | cut -d: -f6)/.kube/config
      export KUBECONFIG
    fi
    k get --raw /readyz >/dev/null 2>"$WORK/err" ||
      die "the cluster of context $CONTEXT does not answer: $(head -n 1 "$WORK/err")"
    k get --raw /apis/storage.k8s.io/v1 2>/dev/null |
      jq -e 'any(.resources[]; .name == "volumeattributesclasses")' >/dev/null ||
      die "the story needs Kubernetes 1.34 or newer: the API server of context $CONTEXT has no VolumeAttributesClass"
    if k get csidriver hostloop.csi.dev >/dev/null 2>&1; then OURS=no; fi
  fi
  build_missing
}

# Builds the programs and the image that are missing.
build_missing() {
  local names=() making=''
  if [ "$OURS" = yes ] && [ -n "$IMAGE" ]; then
    [ -f "$IMAGE" ] || die "--image: there is no file $IMAGE"
  elif [ "$OURS" = yes ]; then
    making=demo_image
  fi
  if [ -n "$RECORD" ] || [ "$UI" = yes ]; then
    making=${making:-demo_programs}
    names+=("the page")
    begin_build "the page" build_page
  fi
  if [ -n "$making" ]; then
    need_toolchain
    need_packages strip=binutils
    PROGRAM=$TARGET/debug/hostloop CLIENT=$TARGET/debug/kubectl-hostloop
    IMAGE=${IMAGE:-$TARGET/tested/hostloop.tar}
    [ "$making" != demo_image ] || DEBUG_BUILD=' (not optimized: the release build takes less)'
    names+=("hostloop (three to seven minutes alone, the first time)")
    begin_build hostloop "$making"
  fi
  if [ "$MODE" = own ] && ! is_built; then
    names+=("Kubernetes, etcd and containerd (six minutes alone, this once)")
    begin_build Kubernetes cluster build
  fi
  if [ ${#names[@]} -gt 0 ]; then
    printf -v making '%s, ' "${names[@]}"
    say "Building, side by side: ${making%, }"
  fi
  await_builds
}

# --- the cluster -------------------------------------------------------------------------------

cluster_up() {
  STARTED=yes
  call "scripts/cluster up --name $CLUSTER" cluster up --name "$CLUSTER" --dir "$CLUSTER_DIR" \
    --kubelet-dir "$KUBELET_DIR" --fast
}

# Loads the image into the nodes. kind and minikube have commands for that.
load_image() {
  case $MODE:$CONTEXT in
    own:*) call "scripts/cluster load $(basename "$IMAGE")" cluster load --name "$CLUSTER" --dir "$CLUSTER_DIR" "$IMAGE" ;;
    context:kind-*)
      command -v kind >/dev/null || no_loader "kind load image-archive $IMAGE --name ${CONTEXT#kind-}"
      call "kind load image-archive $(basename "$IMAGE")" kind load image-archive "$IMAGE" --name "${CONTEXT#kind-}"
      ;;
    *)
      if is_minikube; then
        command -v minikube >/dev/null || no_loader "minikube image load $IMAGE --profile $CONTEXT"
        call "minikube image load $(basename "$IMAGE")" minikube image load "$IMAGE" --profile "$CONTEXT"
      else
        fact image "neither kind nor minikube: it must be on every node already, by"
        fact image "ctr --namespace k8s.io images import $IMAGE"
      fi
      ;;
  esac
}

no_loader() { fail "that program is not here, and the image must get onto the nodes: $1"; }

is_minikube() { [ -n "$(k get nodes --selector minikube.k8s.io/name --output name 2>/dev/null)" ]; }

# --- hostloop in it ------------------------------------------------------------------------------

# Prints the size of the pool's image. The story's thick volume makes all of it take room on the disk.
# With --keep, the examples of README.md have room beside the story's volumes.
pool_size() {
  if [ "$KEEP" = yes ]; then echo 10Gi; else echo 8Gi; fi
}

manifest() {
  local overlay=snapshot-controller options=()
  [ "$KUBELET_DIR" = /var/lib/kubelet ] || options+=(--kubelet-dir "$KUBELET_DIR")
  [ -z "$POOL_DIR" ] || [ "$MODE" = own ] || options+=(--pool-dir "$POOL_DIR")
  if [ "$MODE" = own ]; then
    options+=(--pool-dir "${POOL_DIR:-$CLUSTER_DIR/pool}" --pool-options ",image=$(pool_size)")
  elif is_minikube; then
    overlay=minikube
  elif [[ $CONTEXT == kind-* ]]; then
    overlay=kind
  fi
  "$ROOT/scripts/render" --overlay $overlay --component attach "${options[@]}" \
    --output "$WORK/hostloop.yaml"
}

# Creates the missing definitions of the snapshot API, and remembers them for the removal.
definitions() {
  local file
  for file in "$ROOT"/deploy/crds/*.storage.k8s.io_*.yaml; do
    if ! k get -f "$file" >/dev/null 2>&1; then
      k create -f "$file" && echo "$file" >>"$WORK/definitions"
    fi
  done
  k wait --for=condition=Established --timeout="$LONG" -f "$ROOT/deploy/crds" 2>/dev/null ||
    k wait --for=condition=Established --timeout="$LONG" crd/volumesnapshots.snapshot.storage.k8s.io \
      crd/volumesnapshotcontents.snapshot.storage.k8s.io \
      crd/volumegroupsnapshots.groupsnapshot.storage.k8s.io \
      crd/volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io
}

rolled_out() { # KIND/NAME
  kube --namespace hostloop rollout status "$1" --timeout="$LONG"
}

# Waits for the node pods and for the controller's pod.
all_rolled_out() {
  local workload
  for workload in daemonset/hostloop deployment/hostloop-controller; do
    call "kubectl rollout status $workload" rolled_out "$workload"
  done
}

# Waits until $@ succeeds. A failure prints its last output.
until_so() {
  local until=$((SECONDS + ${LONG%s}))
  until "$@"; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.3
  done
}

# --- the removal ---------------------------------------------------------------------------------

# Deletes all objects of the story, at whatever step it ended. Controllers first finish their work.
remove_story() {
  k delete namespace "$NAMESPACE" --ignore-not-found --wait=false >/dev/null 2>&1 || true
  local kind
  for kind in volumegroupsnapshots volumesnapshots pods pvc; do
    k delete "$kind" --all --timeout=60s --ignore-not-found >/dev/null 2>&1 || true
  done
  k wait --for=delete "namespace/$NAMESPACE" --timeout=60s >/dev/null 2>&1 || true
  until_gone || echo "some volumes are left: kubectl --context $CONTEXT get pv" >&2
}

until_gone() {
  local until=$((SECONDS + 60))
  until is_empty "$(left_in_api)" 2>/dev/null; do
    [ $SECONDS -lt $until ] || return 1
    sleep 0.5
  done
}

# Prints objects without a namespace that belong to the story's namespace.
left_in_api() {
  k get pv --output json | jq -r --arg ns "$NAMESPACE" \
    '.items[] | select(.spec.claimRef.namespace == $ns) | .metadata.name'
  [ "$SNAPSHOTS" = no ] || k get volumesnapshotcontents,volumegroupsnapshotcontents --output json |
    jq -r --arg ns "$NAMESPACE" '.items[]
      | select((.spec.volumeSnapshotRef // .spec.volumeGroupSnapshotRef).namespace == $ns) | .metadata.name'
}

uninstall() {
  [ -f "$WORK/hostloop.yaml" ] || return 0
  kube delete -f "$WORK/hostloop.yaml" --ignore-not-found --timeout="$LONG"
  # Deleting a definition deletes its objects, so only the demo's own unused definitions go.
  [ ! -f "$WORK/definitions" ] || while read -r file; do
    local name
    name=$(k get -f "$file" --output jsonpath='{.metadata.name}')
    [ -n "$(k get "$name" --all-namespaces --output name)" ] || k delete -f "$file" --timeout="$LONG"
  done <"$WORK/definitions"
}

# Runs at every end of the demo, and removes all that it started.
clean_up() {
  local code=$? cut=true
  trap - EXIT
  trap '' INT TERM HUP
  if [ -n "$CALLING" ]; then kill "$CALLING" 2>/dev/null || true; fi
  end_builds
  end_page
  end_recording || true
  if [ "$FINISHED" = yes ]; then
    cut=false
  elif [ "$STEP" -gt 0 ]; then
    if [ -z "$ERROR" ]; then
      ERROR=interrupted
      [ "$code" -gt 128 ] || ERROR="a command of the demo's own failed, with what it says above"
    fi
    finish_step
    why_not
    if [ "$KEEP" = yes ]; then
      how_to_play
    elif [ "$STARTED$INSTALLED" != nono ]; then
      say "Cleaning up" >&2
      if [ "$MODE" = own ]; then
        # A cluster that did not come up has removed itself.
        [ ! -e "$CLUSTER_DIR/settings" ] || cluster down --name "$CLUSTER" --dir "$CLUSTER_DIR" >&2 || code=1
      else
        remove_story
        if [ "$OURS" = yes ]; then uninstall >/dev/null || code=1; fi
      fi
    fi
  fi
  if [ "$STEP" -gt 0 ]; then summary $cut; fi
  if [ -n "$ERROR" ] && [ "$ERROR" != interrupted ]; then what_it_said >&2; fi
  rm -rf "$WORK"
  exit "$code"
}

# Prints the end of what the failed command said, with the logs of a cluster's parts.
what_it_said() {
  [ -s "$WORK/err" ] || return 0
  echo "The last command said:"
  tail -n 40 "$WORK/err"
}

# Prints the driver's last lines and the last warnings, which show the cause.
why_not() {
  [ -n "$ERROR" ] && [ "$ERROR" != interrupted ] && [ "$INSTALLED" = yes ] || return 0
  {
    echo "The last warnings in namespace $NAMESPACE:"
    k get events --field-selector type=Warning --sort-by .lastTimestamp 2>&1 | tail -n 5
    echo "What hostloop logged last:"
    kube --namespace hostloop logs --selector "app.kubernetes.io/name in (hostloop, hostloop-controller)" \
      --tail 15 --prefix 2>&1
  } >&2 || true
}

how_to_play() {
  local kubectl="kubectl --context $CONTEXT" sudo=''
  [ "$MODE" = context ] || { kubectl="sudo ./scripts/cluster kubectl --name $CLUSTER --" && sudo='sudo '; }
  line ''
  line "It is all left as it is. To play with it:"
  line "  $kubectl --namespace $NAMESPACE get pod,pvc,pv,volumesnapshot"
  line "  $kubectl --namespace $NAMESPACE exec writer -- df -h /data"
  line "  $kubectl apply -f deploy/examples/claim.yaml"
  line "  $kubectl apply -f deploy/examples/snapshot.yaml"
  line "  $kubectl --namespace hostloop logs daemonset/hostloop --follow"
  if [ "$MODE" = own ]; then
    line "For a kubectl of your own, as root, and for kubectl hostloop:"
    line "  export KUBECONFIG=$CLUSTER_DIR/kubeconfig"
  fi
  line "And to take it away:"
  if [ "$MODE" = own ]; then
    line "  sudo ./scripts/cluster down --name $CLUSTER"
  else
    line "  $sudo$kubectl delete namespace $NAMESPACE"
    [ "$OURS" = no ] || line "  kubectl --context $CONTEXT delete namespace hostloop   and the rest as in deploy/README.md"
  fi
}
