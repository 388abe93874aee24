-- Of the transactions that have written to the outbox and not ended, the one that began to write first: what keeps floors from moving.
-- How long it has been open is hidden from logins without pg_read_all_stats, unlike its transaction id.
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age,
       coalesce(age(a.backend_xid), 0)::bigint AS later
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = 'outbox.message'::regclass AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.pid <> pg_backend_pid()
ORDER BY age(a.backend_xid) DESC NULLS LAST, a.xact_start LIMIT 1
