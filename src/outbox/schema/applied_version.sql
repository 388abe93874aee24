-- Returns the newest migration that was applied, and the checksum of the first.
SELECT coalesce(max(version), 0) AS version, max(checksum) FILTER (WHERE version = 1) AS first_checksum FROM outbox.schema_history
