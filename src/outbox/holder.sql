-- Whose transaction this is. The name of its session is for everybody to see, unlike how long it has been open.
SELECT l.pid, a.application_name AS application
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
  AND l.transactionid::text::bigint = $1 & 4294967295
