-- The same fence as a mark's, for a transaction of several statements: while it lasts, no successor can take these lanes.
SELECT l.lane FROM outbox.lane l
WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
  AND l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
ORDER BY l.lane FOR SHARE
