#!/usr/bin/env bash
# Part of scripts/image and scripts/release: archives with the same bytes for the same content.
# Sourced, never run.

# archive FOLDER FILE PATH…: makes a tar file of the folder's paths, without times and owners.
archive() {
  local folder=$1 file=$2
  shift 2
  tar --format=gnu --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner \
    -C "$folder" -cf "$file" "$@"
}

digest() { sha256sum <"$1" | cut -d' ' -f1; }

# Prints the time for files in archives: SOURCE_DATE_EPOCH has it in seconds since 1970.
created() { date --utc --date="@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ; }

# image_config ARCH LAYER LABELS: prints an image's configuration. LAYER is the sum of its only layer,
# LABELS a JSON object.
image_config() {
  jq --null-input --arg arch "$1" --arg layer "sha256:$2" --argjson labels "$3" \
    --arg created "$(created)" '{
      architecture: $arch,
      os: "linux",
      created: $created,
      config: {
        Env: ["PATH=/usr/bin"],
        Entrypoint: ["/usr/bin/hostloop"],
        Cmd: ["run"],
        WorkingDir: "/",
        Labels: $labels,
      },
      rootfs: {type: "layers", diff_ids: [$layer]},
      history: [{created: $created, created_by: "scripts/image"}],
    }'
}

# docker_archive ROOT WORK FILE NAME ARCH LABELS: makes an archive of one layer, the folder ROOT, and
# beside it FILE.gz.
docker_archive() {
  local work=$2 file=$3
  archive "$1" "$work/layer.tar" .
  image_config "$5" "$(digest "$work/layer.tar")" "$6" >"$work/config.json"
  jq --null-input --compact-output --arg name "$4" \
    '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$work/manifest.json"
  archive "$work" "$work/image.tar" config.json layer.tar manifest.json
  gzip --no-name --keep --force "$work/image.tar"
  # A rename, so that a reader finds a complete archive or none.
  mkdir -p "$(dirname "$file")"
  mv "$work/image.tar" "$file"
  mv "$work/image.tar.gz" "$file.gz"
}

mib() { awk -v bytes="$(stat --format=%s "$1")" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
