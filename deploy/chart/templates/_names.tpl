{{/* The name of the release's objects. Two releases in one namespace have two names. */}}
{{- define "outboxd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end }}

{{/* What selects the pods of one component. Context: root, component. */}}
{{- define "outboxd.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of an object. Context: root, component. Helm adds its own when it installs. */}}
{{- define "outboxd.labels" -}}
{{ include "outboxd.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "outboxd.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "outboxd.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{/* A hook runs before the objects of the release exist, so the migration has a service account of its own. */}}
{{- define "outboxd.migrationServiceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- include "outboxd.fullname" . }}-migrate
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "outboxd.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* A scalar as text. Helm reads numbers as floats, and would write a large one as 1e+06. */}}
{{- define "outboxd.text" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
