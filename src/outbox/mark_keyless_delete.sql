-- Published, gone. Fenced by the claim's token.
DELETE FROM outbox.message
WHERE id = ANY ($1::bigint[]) AND claim_token = $2 AND published_at IS NULL AND (SELECT incarnation FROM outbox.server) = $3
