-- The longest-running transaction that has written to the outbox and not ended: what keeps floors from moving.
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = 'outbox.message'::regclass AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
ORDER BY a.xact_start LIMIT 1
