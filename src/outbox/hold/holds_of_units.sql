-- All holds of these topics and units in lanes of this worker, and among the unordered rows.
SELECT h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, 0::float8 AS wait
FROM outbox.hold h
JOIN outbox.lane l ON l.lane = h.lane
JOIN unnest($3::text[], $4::text[]) AS fixed (topic, unit) ON h.topic = fixed.topic AND h.unit = fixed.unit
WHERE (l.owner = $1 OR l.lane = -1) AND h.retry_at < 'infinity' AND (SELECT incarnation FROM outbox.server) = $2
