-- The same for rows without a lane. There is no line to keep, so the retry time goes where delayed rows are found:
-- available_at, whose own time has passed. A lease would pin the floor for as long as the retries last. A row of which a
-- copy may be there from before keeps the token under an expired lease, as in release_keyless.sql.
UPDATE outbox.message m
SET attempts = least(m.attempts + 1, 32767), last_error = refused.reason,
    claim_token = CASE WHEN refused.suspect AND NOT refused.dead THEN m.claim_token END,
    lease_until = CASE WHEN refused.suspect AND NOT refused.dead THEN clock_timestamp() END,
    dead_at = CASE WHEN refused.dead THEN clock_timestamp() END,
    available_at = CASE WHEN refused.dead THEN NULL ELSE clock_timestamp() + refused.wait * interval '1 second' END
FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::float8[], $5::smallint[], $6::boolean[])
  AS refused (id, reason, dead, wait, attempts, suspect)
WHERE m.id = refused.id AND m.claim_token = $7 AND m.attempts = refused.attempts AND m.published_at IS NULL
  AND (SELECT incarnation FROM outbox.server) = $8
