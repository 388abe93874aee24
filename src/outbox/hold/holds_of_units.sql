-- Returns all holds of these topics and units, in lanes of this worker and of unordered rows.
SELECT h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, 0::float8 AS wait
FROM outbox.hold h
JOIN outbox.lane l ON l.lane = h.lane
JOIN unnest($3::text[], $4::text[]) AS wanted (topic, unit) ON h.topic = wanted.topic AND h.unit = wanted.unit
WHERE (l.owner = $1 OR l.lane = -1) AND h.retry_at < 'infinity' AND (SELECT incarnation FROM outbox.server) = $2
