-- Ends the lease of a worker whose process is proven gone: its lanes are free at once, and its claims of unordered rows are over, so
-- that whatever it had in flight is taken over and flagged. Not if a session of it is there after all: then it lives.
WITH stopped AS (
    UPDATE outbox.worker w
    SET stopped_at = clock_timestamp()
    WHERE w.id = $1 AND w.stopped_at IS NULL
      AND NOT EXISTS (SELECT FROM pg_locks l
                      WHERE l.locktype = 'advisory' AND l.objsubid = 1
                        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                        AND (l.classid::bigint << 32) | l.objid::bigint = w.session_key)
    RETURNING w.id
), ended AS (
    UPDATE outbox.claim c
    SET lease_until = clock_timestamp()
    WHERE c.worker IN (SELECT id FROM stopped) AND c.lease_until > clock_timestamp()
)
SELECT id FROM stopped
