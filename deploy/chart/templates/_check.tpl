{{/* Fails with every problem of the values that the schema cannot see. */}}
{{- define "outboxd.check" -}}
{{- $problems := list -}}
{{- with .Values -}}
{{- if not .database.login.urlSecret.name -}}
{{- $problems = append $problems "database.login.urlSecret.name is empty: which Secret has the connection string of the relay?" -}}
{{- end -}}
{{- if not .kafka.brokers -}}
{{- $problems = append $problems "kafka.brokers is empty: where is Kafka?" -}}
{{- end -}}
{{- if and .migration.enabled (not .migration.login.urlSecret.name) -}}
{{- $problems = append $problems "migration.login.urlSecret.name is empty: which Secret has the connection string of the migration? Or migrate by hand, and set migration.enabled to false." -}}
{{- end -}}
{{- if and .database.ca.secret .database.ca.configMap -}}
{{- $problems = append $problems "database.ca has a secret and a configMap; remove one" -}}
{{- end -}}
{{- if and .kafka.ca.secret .kafka.ca.configMap -}}
{{- $problems = append $problems "kafka.ca has a secret and a configMap; remove one" -}}
{{- end -}}
{{- if and .database.login.passwordSecret.name (hasKey .settings "OUTBOXD_DATABASE_PASSWORD_COMMAND") -}}
{{- $problems = append $problems "the password comes from database.login.passwordSecret and from OUTBOXD_DATABASE_PASSWORD_COMMAND; remove one" -}}
{{- end -}}
{{- if and .kafka.serviceAccountToken.enabled (hasKey .settings "OUTBOXD_KAFKA_TOKEN_COMMAND") -}}
{{- $problems = append $problems "the token comes from kafka.serviceAccountToken and from OUTBOXD_KAFKA_TOKEN_COMMAND; remove one" -}}
{{- end -}}
{{- if .ui.enabled -}}
{{- if not .ui.tokenSecret.name -}}
{{- $problems = append $problems "ui.tokenSecret.name is empty: which Secret has the token of the login form?" -}}
{{- end -}}
{{- if eq (int .ui.port) (int .httpPort) -}}
{{- $problems = append $problems "ui.port is httpPort, where probes and scrapes are answered; choose another" -}}
{{- end -}}
{{- end -}}
{{- if and .verify.enabled (not .verify.login.urlSecret.name) -}}
{{- $problems = append $problems "verify.login.urlSecret.name is empty: which Secret has the connection string of a login with outbox_operator?" -}}
{{- end -}}
{{- with .autoscaling -}}
{{- if and (ne .by "none") (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- $problems = append $problems "autoscaling.maxReplicas is less than autoscaling.minReplicas" -}}
{{- end -}}
{{- if and (eq .by "keda") (not .keda.triggers) (not .keda.prometheus.serverAddress) -}}
{{- $problems = append $problems "autoscaling.keda.prometheus.serverAddress is empty: where is Prometheus? Or give autoscaling.keda.triggers." -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* The name of a CronJob has 52 characters at most, of which -verify takes seven. */ -}}
{{- if gt (len (include "outboxd.fullname" .)) 45 -}}
{{- $problems = append $problems (printf "%s is longer than 45 characters; set fullnameOverride" (include "outboxd.fullname" .)) -}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "the values have %d problem(s):\n  - %s" (len $problems) (join "\n  - " $problems)) -}}
{{- end -}}
{{- end }}
