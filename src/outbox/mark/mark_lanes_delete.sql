-- Published, gone. Fenced as in mark_lanes_keep.sql.
WITH own AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
      AND l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE
), timeout AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true) FROM (SELECT count(*) FROM own) AS all_of_them
), settled AS (
    DELETE FROM outbox.in_flight
    WHERE id = ANY ($6::bigint[]) AND (SELECT count(*) FROM own) = cardinality($2::smallint[])
)
DELETE FROM outbox.message
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
