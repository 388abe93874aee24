-- Returns lanes, with what the next owner needs to know. Only lanes of this worker, by owner and epoch; locked in lane order, as marks do.
WITH mine AS MATERIALIZED (
    SELECT l.lane, given.floor, given.maybe_sent::bigint[] AS maybe_sent
    FROM outbox.lane l
    JOIN unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::text[]) AS given (lane, epoch, floor, maybe_sent)
      ON l.lane = given.lane AND l.epoch = given.epoch
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $6
    ORDER BY l.lane FOR NO KEY UPDATE OF l
)
UPDATE outbox.lane l
SET owner = NULL, maybe_sent = mine.maybe_sent, floor = greatest(l.floor, mine.floor)
FROM mine
WHERE l.lane = mine.lane
