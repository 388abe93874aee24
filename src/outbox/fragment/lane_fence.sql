-- The lock on the lanes is the fence. A write that is guarded by EXISTS or by a join can still commit after a successor has taken
-- the lanes. This one waits for the take and then matches nothing. The epochs ($3) are looked up by position, because a join with
-- them makes the mark of a few rows a quarter slower.
-- Once the lanes are locked, a row that another transaction has locked is waited for only a quarter of a second. The setting ends
-- with the transaction.
WITH own AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
      AND l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE
), timeout AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true) FROM (SELECT count(*) FROM own) AS all_of_them
)
