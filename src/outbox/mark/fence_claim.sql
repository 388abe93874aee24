-- The same fence as a mark's, for a transaction of several statements: while it lasts, nobody can take over what we claimed. What
-- follows waits for row locks no longer than a mark does.
WITH own AS MATERIALIZED (
    SELECT FROM outbox.claim WHERE id = $1 AND worker = $2 AND (SELECT incarnation FROM outbox.server) = $3 FOR UPDATE
)
SELECT set_config('lock_timeout', '250ms', true) FROM own
