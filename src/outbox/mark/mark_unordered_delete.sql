-- Marks unordered rows as published by deleting them. Fenced as in mark_unordered_keep.sql.
WITH own AS (
    DELETE FROM outbox.claim WHERE id = $2 AND worker = $3 AND (SELECT incarnation FROM outbox.server) = $4
    RETURNING id
), marked AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND EXISTS (SELECT FROM own WHERE set_config('lock_timeout', '250ms', true) <> '')
    RETURNING 1
)
SELECT (SELECT count(*) FROM marked) AS marked FROM own
