#!/usr/bin/env bash
# Makes a kustomize component that gives the driver another name, and refuses components that do not
# follow it. Sourced by scripts/render, never run.

# The policies that have the driver's name in a variable, the first of each.
NAMING_POLICIES=(new-volumes volumes claims bound-claims contents attachments capacities capacity-classes
  events)

# The names that the manifests can have: those of hostloop_report::driver_name and of the chart's schema.
DRIVER_NAMES='^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$'

# check_driver_name NAME
check_driver_name() {
  local LC_ALL=C
  [[ ${#1} -le 63 && $1 =~ $DRIVER_NAMES ]] ||
    die "--driver-name: $1 has to have at most 63 lower-case letters, digits, dashes and dots, and each" \
      "part between dots begins and ends with a letter or digit"
}

# driver_name_component NAME: prints the component. Its patches fail where the base is not as they expect.
driver_name_component() {
  local name=$1 policy workload lease=hostloop-${1//./-}
  cat <<YAML
# Made by scripts/render: the driver is named $name. After the components that change it or
# add classes, because these know it by its usual name.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
  - target: {kind: CSIDriver}
    patch: |-
      - {op: replace, path: /metadata/name, value: "$name"}
  - target: {kind: StorageClass}
    patch: |-
      - {op: replace, path: /provisioner, value: "$name"}
  - target: {kind: VolumeAttributesClass}
    patch: |-
      - {op: replace, path: /driverName, value: "$name"}
  - target: {kind: VolumeSnapshotClass|VolumeGroupSnapshotClass}
    patch: |-
      - {op: replace, path: /driver, value: "$name"}
YAML
  for workload in "DaemonSet hostloop" "Deployment hostloop-controller"; do
    cat <<YAML
  - target: {kind: ${workload% *}, name: ${workload#* }}
    patch: |-
      apiVersion: apps/v1
      kind: ${workload% *}
      metadata:
        name: ${workload#* }
      spec:
        template:
          spec:
            containers:
              - name: ${workload#* }
                env:
                  - name: DRIVER_NAME
                    value: "$name"
YAML
  done
  # The lease is named by the driver.
  for workload in hostloop hostloop-controller; do
    cat <<YAML
  - target: {kind: Role, name: $workload}
    patch: |-
      - {op: test, path: /rules/0/resourceNames/0, value: hostloop-hostloop-csi-dev}
      - {op: replace, path: /rules/0/resourceNames/0, value: $lease}
YAML
  done
  # So is the object of its changed blocks, if the component snapshot-metadata is there.
  cat <<YAML
  - target: {kind: ClusterRole, name: hostloop-snapshot-metadata}
    patch: |-
      - {op: test, path: /rules/2/resourceNames/0, value: hostloop.csi.dev}
      - {op: replace, path: /rules/2/resourceNames/0, value: "$name"}
YAML
  for policy in "${NAMING_POLICIES[@]}"; do
    cat <<YAML
  - target: {kind: ValidatingAdmissionPolicy, name: hostloop-$policy}
    patch: |-
      - {op: test, path: /spec/variables/0/name, value: driver}
      - {op: replace, path: /spec/variables/0/expression, value: "'$name'"}
YAML
  done
}

# check_names OVERLAY NAME COMPONENT…: dies if the driver or its namespace would have two names: the one
# that csi-hostpath or --driver-name gives, and the usual one. A component can't know what another one
# has renamed, but csi-hostpath renames what those before it have made.
check_names() {
  local overlay=$1 name=$2 component all renamed=''
  shift 2
  all=" $overlay $* "
  if [ "$overlay" = csi-hostpath ]; then
    renamed='the overlay csi-hostpath'
    [ -z "$name" ] ||
      die "--driver-name does not go with $renamed, which names the driver itself: leave one out"
  fi
  for component in "$@"; do
    case $component in
      place-claims | alerts | csi-hostpath)
        [ -z "$name" ] ||
          die "--driver-name does not go with the component $component, which names the driver itself"
        ;;
    esac
    case $component in
      csi-hostpath)
        [ -z "$renamed" ] || die "the component csi-hostpath is chosen twice: leave one out"
        renamed='the component csi-hostpath'
        ;;
      place-claims | alerts | snapshot-metadata | shared-kernel)
        [ "$all" = "${all/ csi-hostpath /}" ] ||
          die "the component $component does not go with csi-hostpath: it has hostloop's own names." \
            "Leave one out"
        ;;
      attach | image-pool) ;;
      *)
        [ -z "$renamed" ] ||
          die "the component $component goes by hostloop's own names, which $renamed has changed:" \
            "put it before, as in --component image-pool --component $component --component csi-hostpath"
        ;;
    esac
  done
}
