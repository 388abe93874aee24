-- Postpones holds of a lane whose retry failed, and those without a wait until an operator acts. Runs after the fence.
UPDATE outbox.hold h
SET failures = h.failures + 1, reason = postponed.reason,
    retry_at = coalesce(clock_timestamp() + postponed.wait * interval '1 second', 'infinity')
FROM unnest($2::text[], $3::text[], $4::text[], $5::float8[]) AS postponed (topic, unit, reason, wait)
WHERE h.lane = $1 AND h.topic = postponed.topic AND h.unit = postponed.unit
