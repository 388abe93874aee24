-- Published, kept; with it goes the record of what was in flight ($6), if all lanes are still ours. The lock on the lanes is the fence:
-- a mark guarded by EXISTS or by a join can still commit after a successor's take; this one waits for the take and then matches nothing.
-- The epochs ($3) are looked up by place: a join with them would make the mark of a few rows a quarter dearer. coalesce: without statistics
-- the planner would look for every id in every lane.
-- Once all lanes are locked, it waits a quarter of a second for a row that somebody else has locked, and no longer: then locked_rows.sql tells
-- which they are, and the others are marked without them. The setting ends with the transaction.
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
UPDATE outbox.message
SET published_at = clock_timestamp(), available_at = NULL
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
