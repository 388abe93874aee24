-- The same fence as a mark's, for a transaction of several statements: while it lasts, no successor can take these lanes. What
-- follows waits for row locks no longer than a mark does.
WITH own AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
      AND l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE
), timeout AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true) FROM (SELECT count(*) FROM own) AS all_of_them
)
SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)
