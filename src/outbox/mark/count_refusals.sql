-- Counts refusals of ordered rows; no other statement raises their attempts. Runs after the fence. The attempts read by the claim
-- are compared, so a repetition of this statement counts nothing twice.
UPDATE outbox.message m
SET attempts = least(m.attempts + 1, 32767), last_error = refused.reason,
    dead_at = CASE WHEN refused.dead THEN clock_timestamp() END,
    available_at = CASE WHEN refused.dead THEN NULL ELSE m.available_at END
FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::smallint[]) AS refused (id, reason, dead, attempts)
WHERE m.id = refused.id AND m.attempts = refused.attempts AND m.published_at IS NULL AND m.dead_at IS NULL AND m.lane IS NOT NULL
