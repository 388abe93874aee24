SELECT max(version) AS version FROM outbox.schema_history
