# Part of scripts/demo: the state of API server and node, as lines of sort, name and text.

def bytes:
  def three: if . >= 99.95 then (. + 0.5 | floor) elif . >= 9.995 then (. * 10 | round) / 10
    else (. * 100 | round) / 100 end;
  {n: ., units: ["B", "KiB", "MiB", "GiB", "TiB"]}
  | until(.n < 999.5 or (.units | length) == 1; .n /= 1024 | .units |= .[1:])
  | "\(.n | three) \(.units[0])";

# A quantity as Kubernetes writes it, where it is a number with or without a binary unit.
def quantity:
  if . == null then "without a bound"
  else capture("^(?<n>[0-9]+)(?<unit>[KMGT]i)?$") as $q
    | ($q.n | tonumber) * ({"Ki": 1024, "Mi": 1048576, "Gi": 1073741824, "Ti": 1099511627776}[$q.unit // ""] // 1)
    | bytes
  end;

def short:
  gsub("(?<a>[0-9a-f]{4})[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{8}(?<b>[0-9a-f]{4})";
    "\(.a)…\(.b)")
  | gsub("(?<a>[0-9a-f]{4})[0-9a-f]{56}(?<b>[0-9a-f]{4})"; "\(.a)…\(.b)");

# A path below kubelet's directory, without the part that all such paths share.
def place($kubelet):
  ltrimstr($kubelet + "/") | gsub("kubernetes.io~csi|kubernetes.io/csi"; "…") | short;

def going: if .metadata.deletionTimestamp then ["being deleted"] else [] end;

def condition($type): any(.status.conditions[]?; .type == $type and .status == "True");

# The names that handles have in the story: {handle: name}.
def handles($items):
  [$items[] | select(.kind == "PersistentVolume" and .spec.csi)
    | {(.spec.csi.volumeHandle): .spec.claimRef.name, (.metadata.name): .spec.claimRef.name}]
  + [$items[] | select(.kind == "VolumeSnapshotContent" and .status.snapshotHandle)
    | {(.status.snapshotHandle): .spec.volumeSnapshotRef.name}]
  + [$items[] | select(.kind == "VolumeGroupSnapshotContent" and .status.volumeGroupSnapshotHandle)
    | {(.status.volumeGroupSnapshotHandle): .spec.volumeGroupSnapshotRef.name}]
  | add // {};

def object($names):
  .kind as $kind |
  if $kind == "PersistentVolumeClaim" then
    ["pvc", .metadata.name,
     [.status.phase, (.status.capacity.storage // .spec.resources.requests.storage), .spec.storageClassName,
      if .spec.volumeMode == "Block" then "block" else empty end,
      (.status.currentVolumeAttributesClassName // empty)] + going]
  elif $kind == "PersistentVolume" then
    ["pv", (.metadata.name | short),
     [.status.phase, .spec.capacity.storage, "for \(.spec.claimRef.name)",
      "only on \([.spec.nodeAffinity.required.nodeSelectorTerms[]?.matchExpressions[]?.values[]?] | join(" or "))",
      .spec.persistentVolumeReclaimPolicy] + going]
  elif $kind == "Pod" then
    ["pod", .metadata.name,
     [.status.phase, if condition("Ready") then "ready" else "not ready" end] + going]
  elif $kind == "VolumeAttachment" then
    ["va", (.metadata.name | short),
     [(.spec.source.persistentVolumeName as $pv | "\($names[$pv] // $pv) to \(.spec.nodeName)"),
      if .status.attached then "attached" else "not attached" end] + going]
  elif $kind == "VolumeSnapshot" then
    ["vs", (.metadata.name | short),
     [if .status.readyToUse then "ready" else "not ready" end, "restores to \(.status.restoreSize // "?")"] + going]
  elif $kind == "VolumeSnapshotContent" then
    ["vsc", (.metadata.name | short),
     [if .status.readyToUse then "ready" else "not ready" end,
      "for \(.spec.volumeSnapshotRef.name | short)", .spec.deletionPolicy] + going]
  elif $kind == "VolumeGroupSnapshot" then
    ["vgs", .metadata.name, [if .status.readyToUse then "ready" else "not ready" end] + going]
  elif $kind == "VolumeGroupSnapshotContent" then
    ["vgsc", (.metadata.name | short),
     [if .status.readyToUse then "ready" else "not ready" end,
      "for \(.spec.volumeGroupSnapshotRef.name)", .spec.deletionPolicy] + going]
  else empty end;

def node($names; $kubelet):
  def named: $names[.] // short;
  (.volumes[] | ["record", (.id | named),
    [if .format == "none" then "not formatted" else .format end, .provisioning,
     if .read_ahead_kib then "read-ahead \(.read_ahead_kib) KiB" else empty end,
     if .source then "made of \(.source | named)" else empty end,
     if .published_nodes == [] then empty else "published to \(.published_nodes | join(" and "))" end,
     if .staged_as == "block" then "staged as a block device" elif .staged_as then "staged as a filesystem"
     else empty end]]),
  (.snapshots[] | ["record", (.id | named), ["snapshot of \(.source | named)"]]),
  (.groups[] | ["record", (.id | named), ["group of \(.snapshots | length) snapshots"]]),
  ((.volumes + .snapshots)[] | select(.allocated_bytes != null)
    | ["image", (.id | named), ["\(.size_bytes | bytes)", "\(.allocated_bytes | bytes) on disk"], .size_bytes + .allocated_bytes]),
  (.loops[] | ["loop", .device, [(.size_bytes | bytes), if .direct_io then "direct I/O" else "buffered I/O" end,
    "\(.block_size)-byte blocks", if .read_only then "read-only" else empty end,
    if .over == "pool" then "over the image of pool \(.object)" else "over \(.object | named)" end]]),
  (.mounts[] | ["mount", (.path | place($kubelet)),
    [if .kind == "device" then "the device node of \(.device)" else "\(.fs) on \(.device)" end,
     if .read_only then "read-only" else "read-write" end]]),
  (.pools[] | ["pool", .name, [.state, if .size_bytes then "\(.size_bytes - .free_bytes | bytes) used" else empty end],
    (.size_bytes // 0) - (.free_bytes // 0)]);

# The lines: sort, name, text, and for objects with data their size.
def picture($kubelet):
  .names as $names | (.objects.items[] | object($names)), ((.status // empty) | node($names; $kubelet));

# The differences: {sort, name, before, now}, each side null if it does not exist. That a filesystem
# writes its log now and then does not count.
def differences($before; $now):
  def key: "\(.[0]) \(.[1])";
  (["pod", "pvc", "pv", "va", "vs", "vsc", "vgs", "vgsc", "record", "image", "loop", "mount", "pool"]
    | to_entries | map({(.value): .key}) | add) as $order
  | ($before | map({(key): .}) | add // {}) as $old
  | ($now | map({(key): .}) | add // {}) as $new
  | [($old + $new | keys_unsorted[]) as $k | select($old[$k][:3] != $new[$k][:3])
     | select(($old[$k][3] == null) or ($new[$k][3] == null) or ($old[$k][3] - $new[$k][3] | fabs) >= 524288)
     | ($new[$k] // $old[$k]) as $any
     | {sort: $any[0], name: $any[1], before: ($old[$k][2]?), now: ($new[$k][2]?)}]
  | sort_by([$order[.sort], .name]);

# "a, b"; for a change without new or removed parts, only those that differ.
def said:
  if .before == null then .now | join(", ")
  elif .now == null then
    # The former purpose.
    [.before[] | select(test("^(over|for) |.+ to .+"))] | join(", ")
  elif (.before | length) == (.now | length) then
    [[.before, .now] | transpose[] | select(.[0] != .[1]) | "\(.[0]) → \(.[1])"] | join(", ")
  else
    # The removed parts, and the new ones.
    .before as $b | .now as $n
    | ([$b[] | select(. as $x | $n | index($x) | not)]) as $less
    | ([$n[] | select(. as $x | $b | index($x) | not)]) as $more
    | if $less == [] then "now \($more | join(", "))"
      elif $more == [] then "no longer \($less | join(", "))"
      else "\($less | join(", ")) → \($more | join(", "))" end
  end;
