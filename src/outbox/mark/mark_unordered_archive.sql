-- Marks unordered rows as published by moving them to the history. Fenced as in mark_unordered_keep.sql.
WITH own AS (
    DELETE FROM outbox.claim WHERE id = $2 AND worker = $3 AND (SELECT incarnation FROM outbox.server) = $4
    RETURNING id
), deleted AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND EXISTS (SELECT FROM own WHERE set_config('lock_timeout', '250ms', true) <> '')
    RETURNING id, created_at, {archived_columns}
), marked AS (
    INSERT INTO outbox.history (id, created_at, published_at, {archived_columns})
    SELECT id, created_at, clock_timestamp(), {archived_columns}
    FROM deleted
    RETURNING 1
)
SELECT (SELECT count(*) FROM marked) AS marked FROM own
