-- Returns who runs this transaction: a session or, once it is prepared, its global identifier. The application name of a session
-- is visible to every login; how long its transaction has been open is not.
SELECT l.pid, p.gid, coalesce(a.application_name, '') AS application
FROM pg_locks l
     LEFT JOIN pg_stat_activity a ON a.pid = l.pid
     LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.transactionid::text::bigint = $1 & 4294967295
  AND num_nonnulls(a.pid, p.gid) > 0
