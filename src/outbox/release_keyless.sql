-- Give leased rows back unpublished. Those that may have been sent ($2) keep the token under an expired lease:
-- whoever claims them next sees that they are not fresh.
UPDATE outbox.message m
SET claim_token = CASE WHEN given.sent THEN m.claim_token END,
    lease_until = CASE WHEN given.sent THEN clock_timestamp() END
FROM unnest($1::bigint[], $2::boolean[]) AS given (id, sent)
WHERE m.id = given.id AND m.claim_token = $3 AND m.published_at IS NULL AND (SELECT incarnation FROM outbox.server) = $4
