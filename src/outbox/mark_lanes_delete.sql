-- Published, gone. Fenced as in mark_lanes_keep.sql.
WITH own AS MATERIALIZED (
    SELECT l.lane
    FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[]) AS held (lane, epoch)
      ON l.lane = held.lane AND l.epoch = held.epoch
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE OF l
)
DELETE FROM outbox.message
WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND lane = ANY (ARRAY(SELECT lane FROM own))
