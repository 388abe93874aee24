-- Returns the newest migration that was applied, and the checksum of the first.
SELECT max(version) AS version, max(checksum) FILTER (WHERE version = 1) AS first FROM outbox.schema_history
