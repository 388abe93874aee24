-- Marks unordered rows as published and keeps them. The claim is the fence, and the mark deletes it. A successor's claim and this
-- mark both lock it: if the successor was first, the mark finds no claim, changes nothing and returns no row.
WITH own AS (
    DELETE FROM outbox.claim WHERE id = $2 AND worker = $3 AND (SELECT incarnation FROM outbox.server) = $4
    RETURNING id
), marked AS (
    UPDATE outbox.message
    SET published_at = clock_timestamp(), available_at = NULL
    WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND EXISTS (SELECT FROM own WHERE set_config('lock_timeout', '250ms', true) <> '')
    RETURNING 1
)
SELECT (SELECT count(*) FROM marked) AS marked FROM own
