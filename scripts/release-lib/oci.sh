#!/usr/bin/env bash
# Part of scripts/release: an OCI image layout of the images of all architectures. Sourced, never run.

OCI=application/vnd.oci.image

# blob LAYOUT FILE: moves a file into a layout, under its digest, and prints that.
blob() {
  local sum
  sum=$(digest "$2")
  mkdir -p "$1/blobs/sha256"
  mv "$2" "$1/blobs/sha256/$sum"
  echo "sha256:$sum"
}

# descriptor LAYOUT DIGEST TYPE MORE: prints how a manifest refers to a blob. MORE is a JSON object.
descriptor() {
  jq --null-input --arg digest "$2" --arg type "$OCI.$3" --argjson more "$4" \
    --argjson size "$(stat --format=%s "$1/blobs/sha256/${2#sha256:}")" \
    '{mediaType: $type, digest: $digest, size: $size} + $more'
}

# add_image LAYOUT ARCH ARCHIVE: adds the image of a docker archive, and its entry to LAYOUT.images.
add_image() {
  local layout=$1 arch=$2 folder=$1.unpacked layer config labels manifest
  rm -rf "$folder"
  mkdir -p "$folder"
  tar -C "$folder" -xf "$3"
  gzip --no-name --force "$folder/layer.tar"
  labels=$(jq .config.Labels "$folder/config.json")
  layer=$(blob "$layout" "$folder/layer.tar.gz")
  config=$(blob "$layout" "$folder/config.json")
  jq --null-input --arg type "$OCI.manifest.v1+json" --argjson labels "$labels" \
    --argjson config "$(descriptor "$layout" "$config" config.v1+json '{}')" \
    --argjson layer "$(descriptor "$layout" "$layer" layer.v1.tar+gzip '{}')" \
    '{schemaVersion: 2, mediaType: $type, config: $config, layers: [$layer], annotations: $labels}' \
    >"$folder/manifest"
  manifest=$(blob "$layout" "$folder/manifest")
  descriptor "$layout" "$manifest" manifest.v1+json \
    "$(jq --null-input --arg arch "$arch" '{platform: ({os: "linux", architecture: $arch} +
      if $arch == "arm64" then {variant: "v8"} else {} end)}')" >>"$layout.images"
  echo "$labels" >"$layout.labels"
  rm -rf "$folder"
}

# finish_layout LAYOUT NAME TAG: writes the index of all images and the layout's own files. Prints the
# index's digest, with which a cluster pulls the image.
finish_layout() {
  local layout=$1 index
  jq --slurp --arg type "$OCI.index.v1+json" --slurpfile labels "$layout.labels" \
    '{schemaVersion: 2, mediaType: $type, manifests: ., annotations: $labels[0]}' \
    "$layout.images" >"$layout.index"
  index=$(blob "$layout" "$layout.index")
  descriptor "$layout" "$index" index.v1+json \
    "$(jq --null-input --arg name "$2:$3" --arg tag "$3" \
      '{annotations: {"org.opencontainers.image.ref.name": $tag, "io.containerd.image.name": $name}}')" |
    jq --arg type "$OCI.index.v1+json" '{schemaVersion: 2, mediaType: $type, manifests: [.]}' \
      >"$layout/index.json"
  echo '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"
  echo "$index"
}

# image_digest LAYOUT ARCH: prints the digest of an architecture's image.
image_digest() {
  jq --raw-output --arg arch "$2" 'select(.platform.architecture == $arch).digest' "$1.images"
}
