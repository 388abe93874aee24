-- Marks rows as published by moving them to the history. See mark_lanes_keep.sql.
{lane_fence}, entry AS (
    DELETE FROM outbox.in_flight
    WHERE id = ANY ($6::bigint[]) AND (SELECT count(*) FROM own) = cardinality($2::smallint[])
), deleted AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
    RETURNING id, created_at, {archived_columns}
)
INSERT INTO outbox.history (id, created_at, published_at, {archived_columns})
SELECT id, created_at, clock_timestamp(), {archived_columns}
FROM deleted
