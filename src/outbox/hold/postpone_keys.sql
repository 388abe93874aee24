-- Still refused or still sick: look again later.
UPDATE outbox.hold h
SET failures = h.failures + 1, reason = later.reason,
    retry_at = CASE WHEN later.wait < 0 THEN 'infinity' ELSE clock_timestamp() + later.wait * interval '1 second' END
FROM unnest($2::text[], $3::text[], $4::text[], $5::float8[]) AS later (topic, unit, reason, wait)
WHERE h.lane = $1 AND h.topic = later.topic AND h.unit = later.unit
