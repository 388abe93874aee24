-- Stores floors that have risen, and never lowers one. Runs seldom: a stale floor costs a little reading, a hot row costs every
-- worker. If all that may have been sent of a lane (done) is published by now, it is cleared, unless a batch has stored other
-- ranges meanwhile. A lane that a mark has locked is skipped until the next time: waiting for it could deadlock with a mark of
-- several lanes.
WITH own AS MATERIALIZED (
    SELECT l.lane, greatest(l.floor, moved.floor) AS floor,
           CASE WHEN l.maybe_sent = moved.done THEN '{}' ELSE l.maybe_sent END AS maybe_sent
    FROM outbox.lane l JOIN json_to_recordset($2::text::json) AS moved (lane smallint, epoch bigint, floor bigint, done bigint[])
      ON l.lane = moved.lane AND l.epoch = moved.epoch
    WHERE l.owner = $1 AND (l.floor < moved.floor OR l.maybe_sent = moved.done) AND (SELECT incarnation FROM outbox.server) = $3
    ORDER BY l.lane FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE outbox.lane l SET floor = own.floor, maybe_sent = own.maybe_sent
FROM own
WHERE l.lane = own.lane
RETURNING l.lane, l.epoch, l.floor
