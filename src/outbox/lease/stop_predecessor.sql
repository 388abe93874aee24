-- Ends the lease of a worker whose process is proven gone, so that its lanes are free at once. Its claims of unordered rows end
-- as well, so that their rows are claimed again and flagged. Does nothing if PostgreSQL still has a session of the worker.
WITH stopped AS (
    UPDATE outbox.worker w
    SET stopped_at = clock_timestamp()
    WHERE w.id = $1 AND w.stopped_at IS NULL
      AND NOT {has_session}
    RETURNING w.id
), ended AS (
    UPDATE outbox.claim c
    SET lease_until = clock_timestamp()
    WHERE c.worker IN (SELECT id FROM stopped) AND c.lease_until > clock_timestamp()
)
SELECT id FROM stopped
