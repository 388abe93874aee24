-- Written seldom: a stale floor costs a little reading, a hot row costs every worker. Never lowered here. What may have been sent ($5) and
-- is published goes, unless a batch has written more of it in the meantime.
-- A lane that a mark has locked at this moment is left for the next time: waiting for it could deadlock with a mark of
-- several lanes.
WITH mine AS MATERIALIZED (
    SELECT l.lane, greatest(l.floor, seen.floor) AS floor,
           CASE WHEN l.maybe_sent = seen.done::bigint[] THEN '{}' ELSE l.maybe_sent END AS maybe_sent
    FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::text[]) AS seen (lane, epoch, floor, done)
      ON l.lane = seen.lane AND l.epoch = seen.epoch
    WHERE l.owner = $1 AND (l.floor < seen.floor OR l.maybe_sent = seen.done::bigint[]) AND (SELECT incarnation FROM outbox.server) = $6
    ORDER BY l.lane FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE outbox.lane l SET floor = mine.floor, maybe_sent = mine.maybe_sent
FROM mine
WHERE l.lane = mine.lane
RETURNING l.lane, l.epoch, l.floor
