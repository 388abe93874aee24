-- Published, kept. The token of this very claim is the fence: a row taken over carries another.
UPDATE outbox.message
SET published_at = clock_timestamp(), available_at = NULL, claim_token = NULL, lease_until = NULL
WHERE id = ANY ($1::bigint[]) AND claim_token = $2 AND published_at IS NULL AND (SELECT incarnation FROM outbox.server) = $3
