-- Locks a claim of this worker for a transaction of several statements, so that no other worker can take it over meanwhile. After
-- this the transaction waits for row locks no longer than a mark does.
WITH own AS MATERIALIZED (
    SELECT FROM outbox.claim WHERE id = $1 AND worker = $2 AND (SELECT incarnation FROM outbox.server) = $3 FOR UPDATE
)
SELECT set_config('lock_timeout', '250ms', true) FROM own
