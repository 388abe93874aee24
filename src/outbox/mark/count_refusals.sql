-- Counts refusals; no other statement raises the attempts of a row. Runs after the fence. The attempts read by the claim are
-- compared, so a repetition of this statement counts nothing twice.
-- A row of a lane waits behind its hold. Unordered rows have no order to keep, so a refused one becomes a delayed row that is due
-- at its retry. Keeping it claimed instead would stop the floor for as long as the retries last.
UPDATE outbox.message m
SET attempts = least(m.attempts + 1, 32767), last_error = refused.reason,
    dead_at = CASE WHEN refused.dead THEN clock_timestamp() END,
    available_at = CASE WHEN refused.dead THEN NULL
                        WHEN m.lane IS NULL THEN clock_timestamp() + refused.wait * interval '1 second'
                        ELSE m.available_at END
FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::smallint[], $5::float8[]) AS refused (id, reason, dead, attempts, wait)
WHERE m.id = refused.id AND m.attempts = refused.attempts AND m.published_at IS NULL AND m.dead_at IS NULL
