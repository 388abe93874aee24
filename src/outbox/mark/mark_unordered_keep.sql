-- Published, kept. The record of this very claim is the fence, and goes with the mark: a claim and a mark that meet lock it both,
-- and the second finds it gone.
WITH own AS (
    DELETE FROM outbox.claim WHERE id = $2 AND worker = $3 AND (SELECT incarnation FROM outbox.server) = $4
    RETURNING id
)
UPDATE outbox.message
SET published_at = clock_timestamp(), available_at = NULL
WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND EXISTS (SELECT FROM own WHERE set_config('lock_timeout', '250ms', true) <> '')
