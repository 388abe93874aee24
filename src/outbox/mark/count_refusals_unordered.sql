-- The same for unordered rows. There is no line to keep, so the retry time goes where delayed rows are found:
-- available_at, whose own time has passed. A claim would pin the floor for as long as the retries last. Run behind the claim's fence.
UPDATE outbox.message m
SET attempts = least(m.attempts + 1, 32767), last_error = refused.reason,
    dead_at = CASE WHEN refused.dead THEN clock_timestamp() END,
    available_at = CASE WHEN refused.dead THEN NULL ELSE clock_timestamp() + refused.wait * interval '1 second' END
FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::float8[], $5::smallint[]) AS refused (id, reason, dead, wait, attempts)
WHERE m.id = refused.id AND m.attempts = refused.attempts AND m.published_at IS NULL AND m.dead_at IS NULL AND m.lane IS NULL
