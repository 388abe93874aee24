{{/*
How a container reaches PostgreSQL and Kafka. Context ("access"): root, login, and kafka unless the container needs none of it.
Every secret is a file below /run/secrets/outboxd, from one projected volume: outboxd reads it again when it changes.
*/}}
{{- define "outboxd.accessEnv" -}}
{{- $database := .root.Values.database -}}
- name: OUTBOXD_SCHEMA
  value: {{ $database.schema | quote }}
- name: OUTBOXD_DATABASE_URL_FILE
  value: /run/secrets/outboxd/database/url
{{- if .login.passwordSecret.name }}
- name: OUTBOXD_DATABASE_PASSWORD_FILE
  value: /run/secrets/outboxd/database/password
{{- end }}
{{- if or $database.ca.secret $database.ca.configMap }}
- name: OUTBOXD_DATABASE_TLS_CA
  value: /run/secrets/outboxd/database/ca.crt
{{- end }}
{{- if .login.certificateSecret.name }}
- name: OUTBOXD_DATABASE_TLS_CERT
  value: /run/secrets/outboxd/database/client.crt
- name: OUTBOXD_DATABASE_TLS_KEY
  value: /run/secrets/outboxd/database/client.key
{{- end }}
{{- with .kafka }}
{{- /* A migration never passes a pooler, and is the one container without Kafka. */}}
- name: OUTBOXD_DATABASE_POOLER
  value: {{ $database.pooler | quote }}
- name: OUTBOXD_KAFKA_BROKERS
  value: {{ .brokers | quote }}
{{- with include "outboxd.kafkaProperties" . }}
- name: OUTBOXD_KAFKA_PROPERTIES
  value: |-
    {{- . | nindent 4 }}
{{- end }}
{{- if .propertiesSecret.name }}
- name: OUTBOXD_KAFKA_PROPERTIES_FILE
  value: /run/secrets/outboxd/kafka/kafka.properties
{{- end }}
{{- if .serviceAccountToken.enabled }}
- name: OUTBOXD_KAFKA_TOKEN_FILE
  value: /run/secrets/outboxd/kafka/token
{{- end }}
{{- end }}
{{- end }}

{{/* The properties that are no secrets, one a line, with those that name the mounted files. Context: kafka. */}}
{{- define "outboxd.kafkaProperties" -}}
{{- $properties := dict -}}
{{- if or .ca.secret .ca.configMap -}}
{{- $_ := set $properties "ssl.ca.location" "/run/secrets/outboxd/kafka/ca.crt" -}}
{{- end -}}
{{- if .certificateSecret.name -}}
{{- $_ := set $properties "ssl.certificate.location" "/run/secrets/outboxd/kafka/client.crt" -}}
{{- $_ := set $properties "ssl.key.location" "/run/secrets/outboxd/kafka/client.key" -}}
{{- end -}}
{{- $lines := list -}}
{{- range $name, $value := merge (deepCopy .properties) $properties -}}
{{- $lines = append $lines (printf "%s=%s" $name (include "outboxd.text" $value)) -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end }}

{{/* The sources of the projected volume. Context: access. */}}
{{- define "outboxd.accessSources" -}}
{{- $database := .root.Values.database -}}
{{- include "outboxd.sourceOfSecret" (dict "name" .login.urlSecret.name "files" (dict "database/url" .login.urlSecret.key)) }}
{{- with .login.passwordSecret }}
{{- if .name }}
{{ include "outboxd.sourceOfSecret" (dict "name" .name "files" (dict "database/password" .key)) }}
{{- end }}
{{- end }}
{{- include "outboxd.sourceOfCa" (dict "ca" $database.ca "path" "database/ca.crt") }}
{{- include "outboxd.sourceOfCertificate" (dict "certificate" .login.certificateSecret "folder" "database") }}
{{- with .kafka }}
{{- with .propertiesSecret }}
{{- if .name }}
{{ include "outboxd.sourceOfSecret" (dict "name" .name "files" (dict "kafka/kafka.properties" .key)) }}
{{- end }}
{{- end }}
{{- include "outboxd.sourceOfCa" (dict "ca" .ca "path" "kafka/ca.crt") }}
{{- include "outboxd.sourceOfCertificate" (dict "certificate" .certificateSecret "folder" "kafka") }}
{{- with .serviceAccountToken }}
{{- if .enabled }}
- serviceAccountToken:
    path: kafka/token
    audience: {{ .audience | quote }}
    expirationSeconds: {{ include "outboxd.text" .expirationSeconds }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Some keys of a Secret. Context: name, files (path: key). */}}
{{- define "outboxd.sourceOfSecret" -}}
- secret:
    name: {{ .name | quote }}
    items:
      {{- range $path, $key := .files }}
      - key: {{ $key | quote }}
        path: {{ $path }}
      {{- end }}
{{- end }}

{{/* Context: ca, path. */}}
{{- define "outboxd.sourceOfCa" -}}
{{- if .ca.secret }}
{{ include "outboxd.sourceOfSecret" (dict "name" .ca.secret "files" (dict .path .ca.key)) }}
{{- else if .ca.configMap }}
- configMap:
    name: {{ .ca.configMap | quote }}
    items:
      - key: {{ .ca.key | quote }}
        path: {{ .path }}
{{- end }}
{{- end }}

{{/* Context: certificate, folder. */}}
{{- define "outboxd.sourceOfCertificate" -}}
{{- with .certificate }}
{{- if .name }}
{{ include "outboxd.sourceOfSecret" (dict "name" .name "files" (dict
     (printf "%s/client.crt" $.folder) .certificateKey
     (printf "%s/client.key" $.folder) .privateKey)) }}
{{- end }}
{{- end }}
{{- end }}
