-- Published, kept. The lock on the lanes is the fence: a mark guarded by EXISTS or by a join can still commit
-- after a successor's take; this one waits for the take and then matches nothing.
WITH own AS MATERIALIZED (
    SELECT l.lane
    FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[]) AS held (lane, epoch)
      ON l.lane = held.lane AND l.epoch = held.epoch
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE OF l
)
UPDATE outbox.message
SET published_at = clock_timestamp(), available_at = NULL
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND lane = ANY (ARRAY(SELECT lane FROM own))
