-- What this session is connected to. A standby takes no writes, nor does a session that begins read-only.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS version_number,
       current_database()::text AS database, session_user::text AS login,
       pg_is_in_recovery() AS is_standby, current_setting('default_transaction_read_only')::boolean AS is_read_only
