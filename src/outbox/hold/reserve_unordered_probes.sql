-- What is paused among the unordered rows belongs to nobody: whoever finds one due tries it, and pushes the time
-- on first so that the others do not. Not those of topics $3 and units $4, which are tried already; no more than $5.
UPDATE outbox.hold h
SET retry_at = clock_timestamp() + $1 * interval '1 second'
WHERE (h.lane, h.topic, h.unit) IN (
        SELECT d.lane, d.topic, d.unit FROM outbox.hold d
        WHERE d.lane = -1 AND d.retry_at <= clock_timestamp()
          AND (d.topic, d.unit) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
        ORDER BY d.retry_at LIMIT $5
        FOR UPDATE SKIP LOCKED)
  AND (SELECT incarnation FROM outbox.server) = $2
RETURNING h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, 0::float8 AS wait
