{{/* What all pods of the platform share. Each takes a dict: `root` is the root context. */}}

{{/* Settings of Dagster: files/dagster.yaml with the values of this team. */}}
{{- define "ml-assets.dagster" -}}
{{- $dagster := .Files.Get "files/dagster.yaml" | fromYaml -}}
{{- $_ := set $dagster "concurrency" (dict "runs" (dict "max_concurrent_runs" (int .Values.runs.mostAtOnce))) -}}
{{- if not .Values.settings.ML_ASSETS_S3_ENDPOINT_URL -}}
{{- $_ := unset $dagster.compute_logs.config "endpoint_url" -}}
{{- end -}}
{{- $launcher := $dagster.run_launcher.config -}}
{{- $_ := set $launcher "env_secrets" (list .Values.secrets.platform) -}}
{{- $run := $launcher.run_k8s_config -}}
{{- $_ := set $run.container_config "resources" .Values.runs.resources -}}
{{- $metadata := dict "annotations" .Values.runs.podAnnotations "labels" .Values.runs.podLabels -}}
{{- $_ := set $run "pod_template_spec_metadata" $metadata -}}
{{- $place := include "ml-assets.place" (dict "root" . "place" .Values.runs) | fromYaml -}}
{{- $_ := set $run "pod_spec_config" (merge $place $run.pod_spec_config) -}}
{{- toYaml $dagster -}}
{{- end -}}

{{/* The pod of a run in files/dagster.yaml: one source of security and tolerations for each pod of the platform. */}}
{{- define "ml-assets.runPod" -}}
{{- (.Files.Get "files/dagster.yaml" | fromYaml).run_launcher.config.run_k8s_config | toYaml -}}
{{- end -}}

{{/* Environment variables of the platform. */}}
{{- define "ml-assets.settings" -}}
{{- $own := dict
  "ML_ASSETS_LAUNCHER" "kubernetes"
  "ML_ASSETS_KUBERNETES_BACKEND" (ternary "trainjob" (ternary "jobset" "job" .Values.jobset.enabled) .Values.trainjob.enabled)
  "ML_ASSETS_KUBERNETES_ISOLATED" "true"
  "ML_ASSETS_KUBERNETES_NAMESPACE" .Release.Namespace
  "ML_ASSETS_KUBERNETES_IMAGE" .Values.images.trainer
  "ML_ASSETS_KUBERNETES_S3_SECRET" .Values.secrets.trainers
  "STEP_LOGS_BUCKET" (urlParse .Values.settings.ML_ASSETS_ARTIFACTS_URL).host -}}
{{- if .Values.ray.enabled -}}
{{- $_ := set $own "ML_ASSETS_POOL" "ray" -}}
{{- $_ := set $own "ML_ASSETS_RAY_ADDRESS" "ray://ray-head:10001" -}}
{{- $_ := set $own "RAY_AUTH_MODE" "token" -}}
{{- end -}}
{{- toYaml (merge (deepCopy .Values.settings) $own) -}}
{{- end -}}

{{/* Where a pod may run. `place`: platform or runs of the values. */}}
{{- define "ml-assets.place" -}}
{{- $pod := (include "ml-assets.runPod" .root | fromYaml).pod_spec_config -}}
tolerations:
  {{- concat $pod.tolerations .place.tolerations | toYaml | nindent 2 }}
{{- with .place.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Metadata of a pod's template. `labels`: those by which the network policies know it. */}}
{{- define "ml-assets.metadata" -}}
labels:
  {{- merge .labels .root.Values.platform.podLabels | toYaml | nindent 2 }}
annotations:
  # A pod reads its settings once: others are another pod.
  ml-assets/settings: {{ print (include "ml-assets.settings" .root) (include "ml-assets.dagster" .root) | sha256sum | quote }}
  {{- with .root.Values.platform.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Spec of a pod up to its containers. `account`: empty for a pod that sends no requests to the cluster. */}}
{{- define "ml-assets.spec" -}}
enableServiceLinks: false
automountServiceAccountToken: {{ not (empty .account) }}
{{- with .account }}
serviceAccountName: {{ . }}
{{- end }}
securityContext:
  {{- (include "ml-assets.runPod" .root | fromYaml).pod_spec_config.securityContext | toYaml | nindent 2 }}
{{ include "ml-assets.place" (dict "root" .root "place" .root.Values.platform) }}
{{- end -}}

{{/* Image, environment, size, security and volumes of a container. `resources`; `mounts` and `env`: more of them. */}}
{{- define "ml-assets.container" -}}
{{- $container := (include "ml-assets.runPod" .root | fromYaml).container_config -}}
image: {{ .root.Values.images.platform }}
envFrom:
  - configMapRef: {name: {{ .settings | default "ml-assets" }}}
  - secretRef: {name: {{ .root.Values.secrets.platform }}}
env:
  {{- toYaml .env | nindent 2 }}
resources:
  {{- toYaml .resources | nindent 2 }}
securityContext:
  {{- toYaml $container.securityContext | nindent 2 }}
volumeMounts:
  {{- concat $container.volumeMounts .mounts | toYaml | nindent 2 }}
{{- end -}}

{{/* Settings of Dagster and the workspace, where a container of Dagster finds them. */}}
{{- define "ml-assets.mounts" -}}
- {name: instance, mountPath: /opt/dagster/dagster.yaml, subPath: dagster.yaml, readOnly: true}
- {name: workspace, mountPath: /opt/workspace, readOnly: true}
{{- end -}}
{{- define "ml-assets.volumes" -}}
- name: instance
  configMap: {name: dagster-instance}
- name: workspace
  configMap: {name: workspace}
- name: writable
  emptyDir: {}
{{- end -}}

{{/* Port on which the pod of the proxy answers browsers. */}}
{{- define "ml-assets.proxyPort" -}}
{{- if .Values.oauth2Proxy.enabled }}4180{{ else }}3000{{ end -}}
{{- end -}}
