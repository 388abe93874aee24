-- The holds of the lanes this worker owns, soonest first.
SELECT h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures,
       least(extract(epoch FROM h.retry_at - clock_timestamp()), 3600)::float8 AS wait
FROM outbox.hold h JOIN outbox.lane l ON l.lane = h.lane
WHERE l.owner = $1 AND h.retry_at < 'infinity' AND (SELECT incarnation FROM outbox.server) = $2
ORDER BY h.retry_at LIMIT $3
