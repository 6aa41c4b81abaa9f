#!/usr/bin/env bash
# shellcheck disable=SC2016,SC2034,SC2153 # what is set here, or used, the other parts use, or set
# Part of scripts/demo: the steps, in order. Each shows what it does, what changes in the cluster and on
# the node, and checks what it says. Sourced, never run.

STORY=(the_cluster the_driver the_classes the_claim the_pod the_data the_expansion the_snapshot
  the_restore the_clone the_group the_block_device the_attributes the_replacement the_pods_go
  the_volumes_go nothing_is_left)
# With --keep the story ends before these steps.
ENDING=3

the_cluster() {
  if [ "$MODE" = own ]; then
    step "A cluster" "A real Kubernetes comes up on this machine: etcd, API server, controller manager, scheduler, containerd and kubelet. Kubelet reports its status each second here and not each ten: an attached volume reaches its pod that much sooner."
    cluster_up
    NODE=$CLUSTER-1
  else
    step "The cluster" "The one of the context $CONTEXT, by your kubectl."
    call "kubectl get nodes" k get nodes
    NODE=$(k get nodes --output json | jq -r '[.items[]
      | select(any(.status.conditions[]; .type == "Ready" and .status == "True"))
      | select(.spec.unschedulable | not)
      | select(all(.spec.taints[]?; .effect == "PreferNoSchedule" or .key == "node-role.kubernetes.io/control-plane"))
      ] | sort_by((.spec.taints // []) | length) | .[0].metadata.name // ""')
    [ -n "$NODE" ] || fail "no node of it is ready"
  fi
  HOSTNAME_LABEL=$(field "node/$NODE" '{.metadata.labels.kubernetes\.io/hostname}')
  fact nodes "$(k get nodes --output json | jq -r '[.items[] | "\(.metadata.name) (\(.status.nodeInfo.kubeletVersion), \(.status.nodeInfo.containerRuntimeVersion))"] | join(", ")')"
  k get nodes >"$WORK/nodes"
  check "a node is ready" grep -qw Ready "$WORK/nodes"
  k create namespace "$NAMESPACE" >/dev/null 2>"$WORK/err" ||
    fail "namespace $NAMESPACE can't be made: $(<"$WORK/err")"
}

the_driver() {
  if [ "$OURS" = yes ]; then
    step "Hostloop comes" "On each node one pod, one container, one process: the CSI driver, the loops that elsewhere are five sidecars, the registrar and the probe. One more pod of the same image, with its own account, runs the cluster-wide tasks and the snapshot controller."
    load_image
    call "kubectl create -k deploy/crds   (the snapshot API)" definitions
    call "scripts/render --component attach …   (the manifest)" manifest
    INSTALLED=yes
    call "kubectl apply -f hostloop.yaml" kube apply -f "$WORK/hostloop.yaml"
  else
    step "Hostloop is there already" "What runs in the cluster is used as it is, and stays."
    k get volumesnapshotclass,volumegroupsnapshotclass hostloop >/dev/null 2>"$WORK/err" ||
      fail "it is there without the classes of snapshots or of groups: type kubectl hostloop install --snapshot-controller yes, with the options of its installation"
    INSTALLED=yes
  fi
  SNAPSHOTS=yes
  all_rolled_out
  call "kubectl get csinode $NODE   (kubelet knows the driver)" until_so registered
  ATTACH=$(field csidriver/hostloop.csi.dev '{.spec.attachRequired}')
  KUBELET_DIR=$(kube --namespace hostloop get daemonset hostloop --output json |
    jq -r '.spec.template.spec.containers[0].env[] | select(.name == "KUBELET_DIR") | .value')
  driver_pod || fail "no pod of hostloop runs on $NODE"
  kube --namespace hostloop get pod "$DRIVER_POD" --output json >"$WORK/pod.json"
  fact pod "$DRIVER_POD on $NODE, $(jq -r '.spec.containers | length' "$WORK/pod.json") container"
  fact attach "volumes are $([ "$ATTACH" = true ] || echo 'not ')attached before they are staged"
  resident
  echo '[]' >"$WORK/picture.json"
  [ "$OURS" = yes ] || look_first || fail "the cluster or the node could not be looked at"
  changes
  VOLUMES_BEFORE=$(jq '.volumes | length' "$WORK/status.json")
  RECORDS_BEFORE=$(jq '(.volumes + .snapshots + .groups) | length' "$WORK/status.json")
  check "it is one container, and it is ready" jq -e '(.spec.containers | length) == 1
    and .status.containerStatuses[0].ready and .status.containerStatuses[0].restartCount == 0' "$WORK/pod.json"
  check "the pool is open$([ "$OURS" = no ] || echo ' and has no volume')" \
    jq -e '.pools[0].state == "open"'"$([ "$OURS" = no ] || echo ' and .volumes == [] and .snapshots == []')" "$WORK/status.json"
}

registered() {
  k get csinode "$NODE" --output json | jq -e '.spec.drivers[]? | select(.name == "hostloop.csi.dev")' >/dev/null
}

# Prints an argument that each driver of this cluster has, and no other process.
driver_argument() { printf '%s' "--plugin-registration-path=$KUBELET_DIR/plugins_registry"; }

# Prints the driver's resident memory, if it runs on this machine.
resident() {
  local pid kib
  [ "$MODE" = own ] || return 0
  for pid in $(pgrep -x hostloop); do
    { tr '\0' '\n' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qF -e "$(driver_argument)" || continue
    kib=$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status")
    fact memory "$(bytes $((kib * 1024))) resident, for all of it$DEBUG_BUILD"
  done
}

the_classes() {
  step "What can be asked for" "StorageClasses name a filesystem and how space is taken; every claim names one. The scheduler learns of each class how much room a node has, and sends pods only where their volumes fit.${WHY_FSTYPE:+ $WHY_FSTYPE}"
  call "kubectl get storageclasses" k get storageclasses --output json
  show class < <(jq -r '.items[] | select(.provisioner == "hostloop.csi.dev")
    | "\(.metadata.name)  \(.volumeBindingMode), \(.reclaimPolicy), \(.parameters | to_entries | map("\(.key | sub(".*/"; ""))=\(.value)") | join(" "))"' "$WORK/out")
  jq -c '[.items[] | select(.provisioner == "hostloop.csi.dev") | .metadata.name]' "$WORK/out" >"$WORK/classes"
  check "$CLASS is among them" jq -e --arg class "$CLASS" 'index($class) != null' "$WORK/classes"
  call "kubectl get csistoragecapacities   (until the capacity is published)" until_so capacity_is_published
  fact room "$(room | jq -r -L "$LIBRARY" 'include "picture"; "\(.capacity | quantity) on the node, for \(.storageClassName); one volume at most \(.maximumVolumeSize | quantity)"')"
  check "the scheduler has it, for this node" is "$(room | jq -r '.nodeTopology.matchLabels | to_entries[0].value')" "$NODE"
}

room() {
  k get csistoragecapacities --all-namespaces --output json | jq --arg class "$CLASS" --arg node "$NODE" '
    [.items[] | select(.storageClassName == $class)
      | select(any(.nodeTopology.matchLabels | to_entries[]; .value == $node))][0]'
}
capacity_is_published() { room | jq -e '. != null and .capacity != null' >/dev/null; }

the_claim() {
  step "A claim" "It waits for its first consumer: where the volume is made is decided by where the first pod goes. Nothing is made yet."
  claim data 512Mi
  call "kubectl get events   (until an event says why it waits)" until_so event_of data WaitForFirstConsumer
  changes
  check "it is Pending, for it waits for its first consumer" is "$(field pvc/data '{.status.phase}')" Pending
  check "no volume is made for it" is "$(jq '.volumes | length' "$WORK/status.json")" "$VOLUMES_BEFORE"
}

event_of() {
  k get events --output json |
    jq -e --arg name "$1" --arg reason "$2" '.items[] | select(.involvedObject.name == $name and .reason == $reason)' >/dev/null
}

# Ten numbers a second, each on a line, so that a missing or repeated number shows.
COUNTING='n=0; while :; do n=$((n + 1)); echo $n >>/data/log; sleep 0.1; done'
counts_on() {
  until_so has_counted "$1" 1 &&
    until_so has_counted "$1" $(($(counted "$1") + 1)) &&
    in_pod "$1" awk '$1 != NR { exit 1 }' /data/log
}
counted() { in_pod "$1" tail -n 1 /data/log; }
has_counted() { is_at_least "$(counted "$1" || echo 0)" "$2"; }

the_pod() {
  step "Its first pod" "The scheduler chooses a node and the provisioner makes the volume there: a record, and a sparse file with a filesystem. The attacher publishes it to the node; kubelet has it staged (loop device, mount) and bound into the pod."
  pod writer "$COUNTING" data=/data
  await_bound data
  call "kubectl get volumeattachments   (until it is there)" until_so is_attached data
  await_ready writer
  changes
  kernel_says data
  node_status >"$WORK/out" 2>&1 || fail "hostloop status: $(tail -n 1 "$WORK/out")"
  fact status "hostloop status, in the driver's pod, says of loop devices:"
  show status < <(awk '/^Loop devices/ {inside = 1; next} /^$/ {inside = 0} inside' "$WORK/out")
  check "the volume is only on the node the pod went to" is "$(k get pv --output json | jq -r '[.items[] | select(.spec.claimRef.name == "data") | .spec.nodeAffinity.required.nodeSelectorTerms[].matchExpressions[].values[]] | unique | join(" ")')" "$NODE"
  [ "$ATTACH" != true ] || check "its VolumeAttachment has the name that kubelet looks for" has_attachment_name
  check "it is on one loop device, with direct I/O and 4096-byte blocks" loop_is data '.direct_io and .block_size == 4096'
  check "it is mounted twice: staged, and bound into the pod" is "$(mounts_of data)" 2
  check "the pod writes to it" counts_on writer
  check "it is thin: most of it is not on the disk yet" is_at_most "$(record_of data .allocated_bytes)" $((300 << 20))
}

is_attached() {
  [ "$ATTACH" = true ] || return 0
  k get volumeattachments --output json | jq -e --arg pv "$(field "pvc/$1" '{.spec.volumeName}')" \
    '.items[] | select(.spec.source.persistentVolumeName == $pv) | .status.attached' >/dev/null
}

has_attachment_name() {
  local sum
  sum=$(printf '%s%s%s' "$(handle_of data)" hostloop.csi.dev "$NODE" | sha256sum | cut -d' ' -f1)
  jq -e --arg name "csi-$sum" '.items[] | select(.kind == "VolumeAttachment" and .metadata.name == $name) | .status.attached' \
    "$WORK/objects.json"
}

# sum_in POD FILE
sum_in() { in_pod "$1" sha256sum "$2" | cut -d' ' -f1; }

# new_data: writes 64 MiB of new random data, and sets SUM to their sum.
new_data() {
  call "kubectl exec writer -- dd of=/data/file   (64 MiB)" in_pod writer \
    dd if=/dev/urandom of=/data/file bs=1M count=64 conv=fsync
  SUM=$(sum_in writer /data/file)
  fact wrote "/data/file, 64 MiB, sha256 $SUM"
}

the_data() {
  local before
  step "The pod writes" "The image grows on the node's disk by what is written, and by no more."
  before=$(record_of data .allocated_bytes)
  new_data
  changes
  check "the image has grown by 64 MiB" is_at_least $(($(record_of data .allocated_bytes) - before)) $((63 << 20))
  check "and by little more" is_at_most $(($(record_of data .allocated_bytes) - before)) $((80 << 20))
}

the_expansion() {
  local device
  step "It grows while it is written to" "The claim asks for more. The resizer has the image made larger and kubelet the filesystem, under the running pod. Kubelet looks for that once a minute; a change to the pod, such as an annotation, has it look now."
  device=$(loop_of data)
  call "kubectl patch pvc data   (768Mi)" k patch pvc data --patch '{"spec": {"resources": {"requests": {"storage": "768Mi"}}}}'
  call "kubectl get pvc data   (until it is kubelet's turn)" until_so is_kubelets_turn
  call "kubectl annotate pod writer look=now" k annotate pod writer look=now
  await pvc/data "of 768Mi" "jsonpath={.status.capacity.storage}=768Mi"
  changes
  kernel_says data
  show df < <(in_pod writer df -h /data)
  check "the loop device has the new size, and is the same one" loop_is data ".device == \"$device\" and .size_bytes == $((768 << 20))"
  check "the pod has the room: over 600 MiB" is_at_least "$(in_pod writer df -k /data | awk 'END {print $(NF - 4)}')" $((600 << 10))
  check "the pod was not restarted, and its writing has no gap" not_disturbed writer
  check "the file is the same" is "$(sum_in writer /data/file)" "$SUM"
}

# True if the image has grown, and kubelet is to grow the filesystem or has done so.
is_kubelets_turn() {
  k get pvc data --output json | jq -e '.status.capacity.storage == "768Mi"
    or any(.status.conditions[]?; .type == "FileSystemResizePending" and .status == "True")' >/dev/null
}

not_disturbed() {
  is "$(field "pod/$1" '{.status.containerStatuses[0].restartCount}')" 0 && counts_on "$1"
}

# snapshot NAME CLAIM
snapshot() {
  cat >"$WORK/objects/snapshot-$1.yaml" <<YAML
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata:
  name: $1
spec:
  volumeSnapshotClassName: hostloop
  source: {persistentVolumeClaimName: $2}
YAML
  apply "VolumeSnapshot of $2" "$WORK/objects/snapshot-$1.yaml"
  await "volumesnapshot/$1" "ready to use" "jsonpath={.status.readyToUse}=true"
}

the_snapshot() {
  step "A snapshot" "The snapshot controller binds a content to it; the snapshotter has the filesystem frozen for a moment and its image copied, sharing blocks where the pool can. Then the pod writes something else."
  snapshot monday data
  SUM_MONDAY=$SUM
  changes
  new_data
  changes
  check "the snapshot says to what size it restores" is "$(field volumesnapshot/monday '{.status.restoreSize}')" 768Mi
  check "it is on the node" is "$(jq --arg id "$(handle_of data)" '[.snapshots[] | select(.source == $id)] | length' "$WORK/status.json")" 1
  check "the pod writes on" not_disturbed writer
}

the_restore() {
  step "Restored, and larger" "A claim with the snapshot as its dataSource: a new volume with the data of that moment; its filesystem grows to the claim's size before the pod gets it."
  MADE_OF="monday" claim restored 1Gi "$CLASS" "$(from_snapshot monday)"
  pod reader "sleep 1000000" restored=/data
  await_bound restored
  await_ready reader
  changes
  check "it has the file as it was then" is "$(sum_in reader /data/file)" "$SUM_MONDAY"
  check "the original has the new one" is "$(sum_in writer /data/file)" "$SUM"
  check "it is of the larger size: over 850 MiB" is_at_least "$(in_pod reader df -k /data | awk 'END {print $(NF - 4)}')" $((850 << 10))
}

the_clone() {
  step "A clone" "A claim with another claim as its dataSource: a copy of the volume as it is now, while its pod writes on."
  MADE_OF="data" claim clone 768Mi "$CLASS" "$(from_claim data)"
  pod copy "sleep 1000000" clone=/data
  await_bound clone
  await_ready copy
  changes
  call "kubectl exec copy -- rm /data/log" in_pod copy rm /data/log
  check "it has the file of now" is "$(sum_in copy /data/file)" "$SUM"
  check "what is done to the clone is not done to the original" not_disturbed writer
}

the_group() {
  local first second both
  step "Two volumes at one moment" "A pod writes each number to one volume and then to the other. A group snapshot freezes both while it is taken, so what is restored of it differs by one number at most."
  LABEL=pair claim table 512Mi
  LABEL=pair claim journal 512Mi
  pod pair 'n=0; while :; do n=$((n + 1)); echo $n >>/journal/n; echo $n >>/table/n; done' journal=/journal table=/table
  await_ready pair
  call "kubectl exec pair -- test -s /table/n   (until it has written)" until_so in_pod pair test -s /table/n
  cat >"$WORK/objects/group.yaml" <<YAML
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata:
  name: both
spec:
  volumeGroupSnapshotClassName: hostloop
  source: {selector: {matchLabels: {demo: pair}}}
YAML
  apply "VolumeGroupSnapshot of what is labelled demo=pair" "$WORK/objects/group.yaml"
  await volumegroupsnapshot/both "ready to use" "jsonpath={.status.readyToUse}=true"
  call "kubectl get volumesnapshots   (until each member is ready)" until_so members_ready
  first=$(member_of journal) second=$(member_of table)
  MADE_OF="the group's member" claim journal-then 512Mi "$CLASS" "$(from_snapshot "$first")"
  MADE_OF="the group's member" claim table-then 512Mi "$CLASS" "$(from_snapshot "$second")"
  pod pair-then "sleep 1000000" journal-then=/journal table-then=/table
  await_ready pair-then
  changes
  both=$(in_pod pair-then sh -c 'tail -n 1 /journal/n; tail -n 1 /table/n' | tr '\n' ' ')
  read -r first second <<<"$both"
  fact caught "journal $first, table $second"
  check "both are of one moment" is_at_most $((first - second)) 1
  check "and none is ahead of what it follows" is_at_least $((first - second)) 0
  check "it fell into the middle of the writing" is_at_least "$second" 1
}

# member_of CLAIM: prints the claim's snapshot in the group.
member_of() {
  local handle
  look >/dev/null && handle=$(handle_of "$1")
  k get volumesnapshotcontents --output json | jq -r --arg volume "$handle" --slurpfile status "$WORK/status.json" '
    .items[] | select(.status.volumeGroupSnapshotHandle) | .status.snapshotHandle as $id
    | select(any($status[0].snapshots[]; .id == $id and .source == $volume)) | .spec.volumeSnapshotRef.name'
}

members_ready() {
  k get volumesnapshots --output json | jq -e '[.items[]
    | select(any(.metadata.ownerReferences[]?; .kind == "VolumeGroupSnapshot") or .status.volumeGroupSnapshotName)
    | select(.status.readyToUse)] | length == 2' >/dev/null
}

the_block_device() {
  local sum
  step "A raw block device" "A claim with volumeMode Block: the pod gets the loop device itself, with all its space taken on the disk at once. (A second loop device over the first is kubelet's own: with it, it holds the first.)"
  claim disk 64Mi hostloop-thick "volumeMode: Block"
  pod raw "sleep 1000000" disk=/dev/disk
  await_bound disk
  await_ready raw
  changes
  call "kubectl exec raw -- dd of=/dev/disk   (16 MiB)" in_pod raw sh -c \
    'dd if=/dev/urandom of=/tmp/data bs=1M count=16 && dd if=/tmp/data of=/dev/disk bs=1M conv=fsync'
  sum=$(sum_in raw /tmp/data)
  check "the device has the claim's size" is "$(in_pod raw blockdev --getsize64 /dev/disk)" $((64 << 20))
  check "it reads back as it was written" is "$(in_pod raw head -c $((16 << 20)) /dev/disk | sha256sum | cut -d' ' -f1)" "$sum"
  check "all of it is on the disk" is_at_least "$(record_of disk .allocated_bytes)" $((64 << 20))
  check "it has no filesystem" is "$(record_of disk .format)" raw
}

# Prints the read-ahead of the device under the pod's mount.
read_ahead() {
  in_pod writer sh -c 'cat "/sys/dev/block/$(awk "\$5 == \"/data\" { print \$3 }" /proc/self/mountinfo)/queue/read_ahead_kb"'
}

the_attributes() {
  local before
  step "Other attributes" "A VolumeAttributesClass says how a volume behaves. Naming one changes the volume in use: hostloop-streaming has the device read far ahead."
  before=$(read_ahead) || fail "the pod can't say what device it has"
  call "kubectl patch pvc data   (hostloop-streaming)" k patch pvc data --patch '{"spec": {"volumeAttributesClassName": "hostloop-streaming"}}'
  await pvc/data "hostloop-streaming in force" "jsonpath={.status.currentVolumeAttributesClassName}=hostloop-streaming"
  changes
  fact queue "read_ahead_kb $before → $(read_ahead)"
  check "the loop device under the pod reads 4096 KiB ahead" is "$(read_ahead)" 4096
  check "the pod writes on" not_disturbed writer
}

the_replacement() {
  local was
  step "The driver's pod is replaced" "As in an upgrade. Mounts and loop devices outlive it and the pods notice nothing; the next process knows all it must from disk and kernel."
  kernel_now >"$WORK/kernel-before"
  was=$DRIVER_POD
  call "kubectl delete pod $was" kube --namespace hostloop delete pod "$was" --timeout="$LONG"
  call "kubectl get pods   (until another is ready)" until_so is_replaced "$was"
  call "kubectl rollout status daemonset/hostloop" rolled_out daemonset/hostloop
  changes
  fact pod "$was → $DRIVER_POD"
  kernel_now >"$WORK/kernel-now"
  check "it is another pod" test "$was" != "$DRIVER_POD"
  check "every loop device and every mount is as it was" diff "$WORK/kernel-before" "$WORK/kernel-now"
  check "the pod wrote on all the time" not_disturbed writer
}

# is_replaced POD: true if another pod has its place, and is ready.
is_replaced() {
  driver_pod && [ "$DRIVER_POD" != "$1" ] &&
    kube --namespace hostloop get pod "$DRIVER_POD" --output json |
    jq -e 'any(.status.conditions[]?; .type == "Ready" and .status == "True")' >/dev/null
}

# A new container has the same mounts, in another order.
kernel_now() {
  jq -S '[.loops, (.mounts | map({path, device, fs, read_only}) | sort_by(.path, .device))]' "$WORK/status.json"
}

the_pods_go() {
  step "The pods go" "Kubelet has each volume unbound, and unstaged when its last pod is gone: unmounted, and off its loop device. Then it is detached from the node."
  call "kubectl delete pods --all" k delete pods --all --timeout="$LONG"
  call "kubectl get volumeattachments   (until none is left)" until_so none_attached
  call "hostloop status   (until nothing is staged)" until_so none_staged
  changes
  check "no volume is on a loop device" jq -e '[.loops[] | select(.over != "pool")] == []' "$WORK/status.json"
  check "no volume is mounted" jq -e --slurpfile names "$WORK/names.json" '[.mounts[] | select($names[0][.object])] == []' "$WORK/status.json"
  check "every claim still has its volume" is "$(how_many PersistentVolume)" "$(how_many PersistentVolumeClaim)"
}

none_attached() { look && [ "$(how_many VolumeAttachment)" = 0 ]; }
# A loop device that another program has open for a moment is detached after it.
none_staged() {
  look && jq -e '[.volumes[] | select(.staged_as or .published_nodes != [])] == []
    and [.loops[] | select(.over != "pool")] == []' "$WORK/status.json" >/dev/null
}

the_volumes_go() {
  step "The volumes go" "Claims are deleted, and with them, since their class says Delete, volumes and images. Snapshots outlive the volume they were taken of, and are deleted after it."
  call "kubectl delete pvc --all" k delete pvc --all --timeout="$LONG"
  call "kubectl get pv   (until none is left)" until_so no_volume
  changes
  check "the snapshot has outlived its volume" is "$(field volumesnapshot/monday '{.status.readyToUse}')" true
  call "kubectl delete volumegroupsnapshots --all" k delete volumegroupsnapshots --all --timeout="$LONG"
  call "kubectl delete volumesnapshots --all" k delete volumesnapshots --all --timeout="$LONG"
  call "kubectl get volumesnapshotcontents   (until none is left)" until_so no_content
  changes
  check "no object is left of the story" is_empty "$(left_in_api)"
  check "no record and no image is left of it in the pool" is "$(jq '(.volumes + .snapshots + .groups) | length' "$WORK/status.json")" "$RECORDS_BEFORE"
  check "and no orphans" jq -e '.orphans == []' "$WORK/status.json"
}

no_volume() { look && [ "$(how_many PersistentVolume)" = 0 ]; }
no_content() { look && [ "$(how_many VolumeSnapshotContent)$(how_many VolumeGroupSnapshotContent)" = 00 ]; }

nothing_is_left() {
  if [ "$MODE" = context ]; then
    step "Nothing is left" "The demo's namespace goes$([ "$OURS" = no ] || echo ', and so does hostloop'); the cluster stays, and on its nodes the pool's directory$([ "$OURS" = no ] || echo ', with no volume in it')."
    call "kubectl delete namespace $NAMESPACE" k delete namespace "$NAMESPACE" --timeout="$LONG"
    if [ "$OURS" = yes ]; then
      call "kubectl delete -f hostloop.yaml" uninstall
      INSTALLED=no
      check "no driver is registered" until_so not_registered
    fi
    check "no namespace is left" is_empty "$(k get namespace "$NAMESPACE" --ignore-not-found --output name)"
    return
  fi
  step "Nothing is left" "Hostloop goes, and then the cluster. What there is on this machine is looked for, by name."
  call "kubectl delete -f hostloop.yaml" uninstall
  INSTALLED=no
  check "no driver is registered" until_so not_registered
  call "scripts/cluster down --name $CLUSTER" cluster down --name "$CLUSTER" --dir "$CLUSTER_DIR"
  STARTED=no
  check "no loop device of it is left" until_so no_loop_left
  check "no mount of it is left" until_so no_mount_left
  check "no process of it is left" until_so no_process_left
  check "no file of it is left" test ! -e "$CLUSTER_DIR"
}

not_registered() { ! registered; }

no_loop_left() {
  is_empty "$(losetup --list --noheadings --raw --output NAME,BACK-FILE | grep -F -e "$CLUSTER_DIR/" -e "$KUBELET_DIR/" || true)"
}
no_mount_left() {
  is_empty "$(awk -v a="$CLUSTER_DIR/" -v b="$KUBELET_DIR/" 'index($5 "/", a) == 1 || index($5 "/", b) == 1 {print $5}' /proc/self/mountinfo)"
}
no_process_left() { is_empty "$(processes_left)"; }

# Prints processes with the demo's folder in their command line. Containers' processes lack it.
processes_left() {
  local at
  for at in /proc/[0-9]*/cmdline; do
    # The process may have ended.
    if { tr '\0' ' ' <"$at"; } 2>/dev/null | grep -qF -e "$CLUSTER_DIR/" -e "$(driver_argument)"; then
      { tr '\0' ' ' <"$at" | cut -c1-80; } 2>/dev/null
    fi
  done
}
