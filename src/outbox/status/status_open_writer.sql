-- Returns the open transaction that was the first to write to the outbox, which keeps floors from moving. Logins without
-- pg_read_all_stats see its transaction id, but not how long it has been open. A prepared transaction has no pid. It is found by
-- the lock on its transaction id, and every login sees when it was prepared.
SELECT l.pid, p.gid, coalesce(a.application_name, '') AS application,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS age_seconds,
       coalesce(age(coalesce(a.backend_xid, p.transaction)), 0)::bigint AS later_transactions
FROM pg_locks l
     LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     LEFT JOIN (pg_locks own JOIN pg_prepared_xacts p ON p.transaction = own.transactionid)
       ON l.pid IS NULL AND own.pid IS NULL AND own.virtualtransaction = l.virtualtransaction
WHERE l.locktype = 'relation' AND l.relation = 'outbox.message'::regclass AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid IS DISTINCT FROM pg_backend_pid() AND num_nonnulls(a.pid, p.gid) > 0
ORDER BY age(coalesce(a.backend_xid, p.transaction)) DESC NULLS LAST, coalesce(a.xact_start, p.prepared) LIMIT 1
