-- Marks rows as published and keeps them. Their in-flight entries ($6) are deleted if all lanes still belong to this worker. If
-- the mark times out on a row lock, locked_rows.sql finds the locked rows, and the mark is repeated without them.
{lane_fence}, entry AS (
    DELETE FROM outbox.in_flight
    WHERE id = ANY ($6::bigint[]) AND (SELECT count(*) FROM own) = cardinality($2::smallint[])
)
UPDATE outbox.message
SET published_at = clock_timestamp(), available_at = NULL
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  -- coalesce: without statistics the planner would search every lane for every id.
  AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
