{{- define "hostloop.chart" -}}
{{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The labels of objects that have templates of their own. */}}
{{- define "hostloop.labels" -}}
app.kubernetes.io/instance: {{ quote .Release.Name }}
app.kubernetes.io/managed-by: {{ quote .Release.Service }}
app.kubernetes.io/name: hostloop
app.kubernetes.io/part-of: hostloop
app.kubernetes.io/version: {{ quote .Chart.AppVersion }}
helm.sh/chart: {{ include "hostloop.chart" . }}
{{- end }}

{{/* The lease of the cluster-wide tasks is named by the driver. */}}
{{- define "hostloop.lease" -}}
hostloop-{{ required "driverName is missing: after an upgrade from a chart without it, use --reset-then-reuse-values" .Values.driverName | replace "." "-" }}
{{- end }}

{{/* A text about the driver by its usual name, for the name that it has: the text and the values. */}}
{{- define "hostloop.named" -}}
{{- index . 0 | replace "\"hostloop.csi.dev" (printf "\"%s" (index . 1).Values.driverName)
  | replace "hostloop-hostloop-csi-dev" (include "hostloop.lease" (index . 1)) }}
{{- end }}

{{- define "hostloop.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* A pull of the built-in name would trust any registry that serves it. */}}
{{- define "hostloop.pullPolicy" -}}
{{- $loaded := eq .Values.image.repository "hostloop.csi.dev/hostloop" -}}
{{ .Values.image.pullPolicy | default (ternary "Never" "IfNotPresent" $loaded) }}
{{- end }}

{{- define "hostloop.pullSecrets" }}
{{- with .Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
{{- end }}
{{- end }}

{{/* The options of a pool, as they follow its path. */}}
{{- define "hostloop.poolOptions" -}}
{{- range .options }},{{ . }}{{ end }}
{{- end }}

{{/* The value of HOSTLOOP_POOL. Other variables have the first pool's path and options, as in the base. */}}
{{- define "hostloop.pools" -}}
{{ (first .Values.pools).name }}=$(POOL_DIR)$(POOL_OPTIONS)
{{- range rest .Values.pools }};{{ .name }}={{ .path }}{{ include "hostloop.poolOptions" . }}{{ end }}
{{- end }}

{{- define "hostloop.nodeArgs" }}
{{- range .Values.args.node }}
        - {{ quote . }}
{{- end }}
{{- end }}

{{/* As components/faults and components/shared-kernel have them. */}}
{{- define "hostloop.nodeVariables" }}
{{- if .Values.faults }}
        - name: HOSTLOOP_ENABLE_FAULTS
          value: "true"
{{- end }}
{{- if .Values.sharedKernels }}
        - name: HOSTLOOP_KERNELS
          value: /etc/hostloop/kernels
{{- end }}
{{- end }}

{{/* The nodes of a node's kernel, for the policies: as components/shared-kernel/policies has them. */}}
{{- define "hostloop.kernel" -}}
{{- if .Values.sharedKernels -}}
{{ quote `params.?data.orValue({}).map(k, params.data[k].replace('\n', ' ').split(' ')) .filter(nodes, variables.node in nodes)[?0].orValue([variables.node])` }}
{{- else -}}
{{ quote "[variables.node]" }}
{{- end }}
{{- end }}

{{- define "hostloop.paramKind" }}
{{- if .Values.sharedKernels }}
  paramKind:
    apiVersion: v1
    kind: ConfigMap
{{- end }}
{{- end }}

{{- define "hostloop.paramRef" }}
{{- if .Values.sharedKernels }}
  paramRef:
    name: hostloop-kernels
    namespace: {{ .Release.Namespace }}
    parameterNotFoundAction: Deny
{{- end }}
{{- end }}

{{- define "hostloop.kernelMounts" }}
{{- if .Values.sharedKernels }}
        - mountPath: /etc/hostloop/kernels
          name: kernels
          readOnly: true
{{- end }}
{{- end }}

{{- define "hostloop.kernelVolumes" }}
{{- if .Values.sharedKernels }}
      - configMap:
          name: hostloop-kernels
        name: kernels
{{- end }}
{{- end }}

{{- define "hostloop.controllerArgs" }}
{{- range .Values.args.controller }}
        - {{ quote . }}
{{- end }}
{{- end }}

{{/* A block device is in /dev, which the pod has already. */}}
{{- define "hostloop.poolMounts" }}
{{- range $i, $pool := .Values.pools }}
{{- if not (hasPrefix "/dev/" $pool.path) }}
        - mountPath: {{ quote $pool.path }}
          mountPropagation: HostToContainer
          name: {{ include "hostloop.poolVolume" $i }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hostloop.poolVolumes" }}
{{- range $i, $pool := .Values.pools }}
{{- if not (hasPrefix "/dev/" $pool.path) }}
      - hostPath:
          path: {{ quote $pool.path }}
          type: DirectoryOrCreate
        name: {{ include "hostloop.poolVolume" $i }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hostloop.poolVolume" -}}
pool-dir{{ if . }}-{{ . }}{{ end }}
{{- end }}

{{- define "hostloop.monitorLabels" }}
{{- with .Values.podMonitor.labels }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}

{{/* What API servers before 1.34 do not know: see components/kubernetes-1.30. */}}
{{- define "hostloop.is134" -}}
{{- if semverCompare ">=1.34-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{- define "hostloop.updatePeriod" }}
{{- if include "hostloop.is134" . }}
  nodeAllocatableUpdatePeriodSeconds: 60
{{- end }}
{{- end }}

{{/* "true" if there is a snapshot API, or this release brings it. */}}
{{- define "hostloop.snapshots" -}}
{{- $kind := "snapshot.storage.k8s.io/v1/VolumeSnapshotClass" -}}
{{- if or .Values.snapshotController (.Capabilities.APIVersions.Has $kind) }}true{{ end }}
{{- end }}

{{- define "hostloop.groups" -}}
{{- $kind := "groupsnapshot.storage.k8s.io/v1/VolumeGroupSnapshotClass" -}}
{{- if or .Values.snapshotController (.Capabilities.APIVersions.Has $kind) }}true{{ end }}
{{- end }}

{{/* The names of the default classes. */}}
{{- define "hostloop.defaults" -}}
{{- $names := list -}}
{{- range $name, $class := .Values.classes }}
{{- if and $class $class.default }}{{ $names = append $names $name }}{{ end }}
{{- end }}
{{- join " " $names }}
{{- end }}

{{- define "hostloop.testContainer" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - name: data
    mountPath: /data
{{- end }}
