-- Returns workers with a live lease that ran where this process runs: on its machine ($2) or in its pod ($3), with another
-- session key than its own ($1). The caller finds out whether they are gone; has_session says that PostgreSQL still has a session
-- of theirs.
SELECT w.id AS worker, w.name, w.pod_uid, w.machine, w.pid, w.process_started AS started, {has_session} AS has_session
FROM outbox.worker w
WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
  AND w.session_key <> $1 AND (w.machine = $2 OR w.pod_uid = $3)
