-- Published, gone. Fenced by the claim's token.
DELETE FROM outbox.message
WHERE id = ANY ($1::bigint[]) AND claim_token = $2 AND published_at IS NULL AND pg_postmaster_start_time() = $3
