{{/* What every pod of the release has. outboxd never talks to the Kubernetes API, so a token would only be something to steal. */}}
{{- define "outboxd.pod" -}}
automountServiceAccountToken: false
{{- /* Services of the namespace would become variables, and one called outboxd would look like settings. */}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container of the release has. */}}
{{- define "outboxd.container" -}}
image: {{ include "outboxd.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{/* Environment and mounts of the relay. Those of the doctor are the same, so that it finds what the relay would meet. */}}
{{- define "outboxd.relayEnvironment" -}}
{{- $access := dict "root" . "login" .Values.database.login "kafka" .Values.kafka -}}
envFrom:
  - configMapRef:
      name: {{ include "outboxd.fullname" . }}
env:
  # A container that is restarted in its pod takes over from the one before it at once.
  - name: OUTBOXD_POD_UID
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  {{- include "outboxd.accessEnv" $access | nindent 2 }}
  {{- with .Values.ui }}
  {{- if .enabled }}
  - name: OUTBOXD_UI_LISTEN
    value: {{ printf "%s:%s" $.Values.listenAddress (include "outboxd.text" .port) | quote }}
  - name: OUTBOXD_UI_TOKEN_FILE
    value: /run/secrets/outboxd/ui/token
  {{- if .url }}
  - name: OUTBOXD_UI_URL
    value: {{ .url | quote }}
  {{- end }}
  {{- if .operatorUrlSecret.name }}
  - name: OUTBOXD_UI_DATABASE_URL_FILE
    value: /run/secrets/outboxd/ui/database-url
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: secrets
    mountPath: /run/secrets/outboxd
    readOnly: true
  {{- if include "outboxd.hasCommand" . }}
  - name: temporary
    mountPath: /tmp
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "outboxd.relayVolumes" -}}
{{- $access := dict "root" . "login" .Values.database.login "kafka" .Values.kafka -}}
- name: secrets
  projected:
    # 0440: readable by the group of the pod, its fsGroup.
    defaultMode: 288
    sources:
      {{- include "outboxd.accessSources" $access | nindent 6 }}
      {{- with .Values.ui }}
      {{- if .enabled }}
      {{- include "outboxd.sourceOfSecret" (dict "name" .tokenSecret.name "files" (dict "ui/token" .tokenSecret.key)) | nindent 6 }}
      {{- with .operatorUrlSecret }}
      {{- if .name }}
      {{- include "outboxd.sourceOfSecret" (dict "name" .name "files" (dict "ui/database-url" .key)) | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- end }}
      {{- end }}
{{- if include "outboxd.hasCommand" . }}
- name: temporary
  emptyDir:
    sizeLimit: {{ .Values.temporarySize }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Not empty if a setting names a command, which may want to write files. */}}
{{- define "outboxd.hasCommand" -}}
{{- range $name, $value := .Values.settings }}
{{- if hasSuffix "_COMMAND" $name }}{{ $name }}{{ end }}
{{- end }}
{{- end }}
