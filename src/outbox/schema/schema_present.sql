-- What has been applied here. to_regclass, so that a database without us answers NULL instead of an error.
SELECT to_regclass('outbox.schema_history') IS NOT NULL AS present,
       pg_is_in_recovery() AS read_only,
       current_setting('server_version_num')::integer AS server_version
