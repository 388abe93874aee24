-- Workers with a live lease that ran where this process runs: on its machine ($2) or in its pod ($3). Whether they are gone is for
-- the caller to find out; has_session says that PostgreSQL still has a session of theirs. $1 is our own session key.
SELECT w.id, w.name, w.pod_uid, w.machine, w.pid, w.process_started,
       EXISTS (SELECT FROM pg_locks l
               WHERE l.locktype = 'advisory' AND l.objsubid = 1
                 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND (l.classid::bigint << 32) | l.objid::bigint = w.session_key) AS has_session
FROM outbox.worker w
WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
  AND w.session_key <> $1 AND (w.machine = $2 OR w.pod_uid = $3)
