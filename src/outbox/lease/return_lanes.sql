-- Returns lanes, with what their next owner needs to know. Only lanes of this worker by owner and epoch are returned. They are
-- locked in the order of lanes, as in a mark.
WITH own AS MATERIALIZED (
    SELECT l.lane, returned.floor, returned.maybe_sent
    FROM outbox.lane l
    JOIN json_to_recordset($2::text::json) AS returned (lane smallint, epoch bigint, floor bigint, maybe_sent bigint[])
      ON l.lane = returned.lane AND l.epoch = returned.epoch
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $3
    ORDER BY l.lane FOR NO KEY UPDATE OF l
)
UPDATE outbox.lane l
SET owner = NULL, maybe_sent = own.maybe_sent, floor = greatest(l.floor, own.floor)
FROM own
WHERE l.lane = own.lane
