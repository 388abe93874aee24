-- The same fence as a mark's, for a transaction of several statements: while it lasts, no successor can take these lanes.
SELECT l.lane
FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[]) AS held (lane, epoch)
  ON l.lane = held.lane AND l.epoch = held.epoch
WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
ORDER BY l.lane FOR SHARE OF l
