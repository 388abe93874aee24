-- Written seldom: a stale floor costs a little reading, a hot row costs everybody. Never lowered here.
-- A lane that a mark has locked at this moment is left for the next time: waiting for it could deadlock with a mark of
-- several lanes.
WITH mine AS MATERIALIZED (
    SELECT l.lane, seen.floor
    FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS seen (lane, epoch, floor)
      ON l.lane = seen.lane AND l.epoch = seen.epoch
    WHERE l.owner = $1 AND l.floor < seen.floor AND (SELECT incarnation FROM outbox.server) = $5
    ORDER BY l.lane FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE outbox.lane l SET floor = mine.floor
FROM mine
WHERE l.lane = mine.lane
RETURNING l.lane, l.epoch, l.floor
