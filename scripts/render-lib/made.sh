#!/usr/bin/env bash
# Functions that make files from others: the templates of the Helm chart from deploy/chart, the table of
# values in its README, the PrometheusRule. Sourced by scripts/render, never run.

# chart_templates: turns the rendering of deploy/chart, on standard input, into Helm templates.
# deploy/chart/kustomization.yaml explains the marks.
chart_templates() {
  echo "{{- /* Made by scripts/render from deploy/base and deploy/chart/kustomization.yaml. */}}"
  sed -E \
    -e "s/^( *)(- )?chart\/lines: '(\{\{-.*\}\})'$/\3/" \
    -e "s/^ *- '(\{\{-.*\}\})'$/\1/" \
    -e "s/: '(\{\{)-(.*\}\})'$/: \1\2/" \
    -e 's/^( *namespace:) hostloop$/\1 {{ .Release.Namespace }}/' \
    -e 's/system:serviceaccount:hostloop:/system:serviceaccount:{{ .Release.Namespace }}:/' \
    -e 's/^( *app\.kubernetes\.io\/version:) .*$/\1 {{ quote .Chart.AppVersion }}/' |
    chart_conditions
}

# chart_conditions: encloses each object that has the annotation chart/if in its condition.
chart_conditions() {
  awk '
    function flush(  i) {
      if (condition != "") print "{{- if " condition " }}"
      print "---"
      for (i = 1; i <= count; i++) {
        # An object without another annotation has none.
        if (lines[i] == "  annotations:" && lines[i + 1] !~ /^    /) continue
        print lines[i]
      }
      if (condition != "") print "{{- end }}"
      count = 0
      condition = ""
    }
    /^---$/ { flush(); next }
    /^    chart\/if: / { condition = substr($0, 15); gsub(/^\047|\047$/, "", condition); next }
    { lines[++count] = $0 }
    END { flush() }'
}

# chart_values FILE: prints the table of values: their names, defaults and comments.
chart_values() {
  echo '| Value | Default | |'
  echo '|---|---|---|'
  # A value has a comment that begins with "# --". Keys without one are parts of a value.
  awk '
    function code(text) { gsub(/\|/, "\\|", text); return "`" text "`" }
    /^ *# -- / { comment = $0; sub(/^ *# -- /, "", comment); reading = 1; next }
    reading && /^ *# / { more = $0; sub(/^ *# /, "", more); comment = comment " " more; next }
    /^ *[A-Za-z]+:/ {
      key = $0
      gsub(/^ *|:.*/, "", key)
      value = $0
      sub(/^[^:]*: */, "", value)
      if ($0 !~ /^ /) group = key
      name = $0 ~ /^ / ? group "." key : key
      if (reading) print "| `" name "` | " (value == "" ? "see values.yaml" : code(value)) " | " comment " |"
      reading = 0
    }' "$1"
}

# chart_readme README VALUES: prints README with a new table between its marks.
chart_readme() {
  sed '/^<!-- values -->$/q' "$1"
  echo
  chart_values "$2"
  echo
  sed -n '/^<!-- end of values -->$/,$p' "$1"
}

# prometheus_rule RULES: prints the rules as an object of the Prometheus operator.
prometheus_rule() {
  cat <<'YAML'
# Made by scripts/render from deploy/alerts/rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: hostloop
  namespace: hostloop
  labels:
    app.kubernetes.io/name: hostloop
spec:
YAML
  sed -e '/^#/d' -e 's/^./  &/' "$1"
}

# chart_archive CHART IMAGE FOLDER FILE: writes the chart as an archive that Helm can install, the
# same bytes for the same files. Links become files. IMAGE, NAME:TAG[@DIGEST], may be empty.
chart_archive() {
  local copy=$3/chart tagged=${2%@*} digest='' file
  mkdir "$copy"
  cp --recursive --dereference "$1" "$copy/hostloop"
  while read -r file; do
    case $file in '' | '#'*) ;; *) rm "$copy/hostloop/$file" ;; esac
  done <"$1/.helmignore"
  if [ -n "$2" ]; then
    [ "$tagged" = "$2" ] || digest=${2##*@}
    sed -i -E \
      -e "s|^(  repository:) .*|\1 ${tagged%:*}|" \
      -e "s|^(  tag:) .*|\1 \"${tagged##*:}\"|" \
      -e "s|^(  digest:) .*|\1 \"$digest\"|" "$copy/hostloop/values.yaml"
    chart_readme "$1/README.md" "$copy/hostloop/values.yaml" >"$copy/hostloop/README.md"
  fi
  chmod -R u=rwX,go=rX "$copy/hostloop"
  tar --create --format=gnu --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --owner=0 --group=0 \
    --numeric-owner --directory "$copy" hostloop | gzip --no-name >"$3/chart.tgz"
  cp "$3/chart.tgz" "$4"
}
