-- Marks rows as published by deleting them. See mark_lanes_keep.sql.
{lane_fence}, entry AS (
    DELETE FROM outbox.in_flight
    WHERE id = ANY ($6::bigint[]) AND (SELECT count(*) FROM own) = cardinality($2::smallint[])
)
DELETE FROM outbox.message
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
