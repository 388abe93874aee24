-- Holds of unordered rows belong to no worker. The worker that finds one due probes it, and postpones it first so that the others
-- do not probe it too. Returns at most $5. Holds of topics $3 and units $4, which this worker is already probing, are left out,
-- and so are those of paused topics ($6).
UPDATE outbox.hold h
SET retry_at = clock_timestamp() + $1 * interval '1 second'
WHERE (h.lane, h.topic, h.unit) IN (
        SELECT d.lane, d.topic, d.unit FROM outbox.hold d
        WHERE d.lane = -1 AND d.retry_at <= clock_timestamp()
          AND (d.topic, d.unit) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
          AND d.topic <> ALL ($6::text[])
        ORDER BY d.retry_at LIMIT $5
        FOR UPDATE SKIP LOCKED)
  AND (SELECT incarnation FROM outbox.server) = $2
RETURNING h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, 0::float8 AS wait
