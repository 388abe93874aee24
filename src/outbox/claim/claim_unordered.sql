-- Claims unordered rows by naming them in a row of outbox.claim; the messages themselves are not written. Runs after
-- lock_unordered_claims.sql. Claims pending rows above the floor ($2) and not above $13, and delayed rows that are due: at most
-- $3 of each kind and $4 in total. A topic ($5) or one of its partitions ($10 of $11) may be given; then only its rows are
-- claimed. Where there are holds ($6), rows that one keeps back are left out, except for those of the hold with unit $12.
-- A row is free if no claim names it, or only one whose lease has expired, and if no other transaction has locked it: its mark
-- would wait for that lock, and its refusal could not be written. To find that out a row is locked, but only if a transaction has
-- left a trace in it (xmax).
-- No claim has an id below $1. Returns the id of the new claim, or NULL if no row was free, and the lowest id of all claims.
WITH expired AS MATERIALIZED (
    -- The lock excludes a late mark of an expired claim. If a mark has the lock, the claim is skipped, and the mark keeps its
    -- rows.
    SELECT c.id, c.ids FROM outbox.claim c
    WHERE c.id >= $1 AND c.lease_until <= clock_timestamp()
    ORDER BY c.id FOR UPDATE SKIP LOCKED
), expired_row AS MATERIALIZED (
    SELECT e.id AS claim, named.id FROM expired e, unnest(e.ids) AS named (id)
), fresh AS MATERIALIZED (
    SELECT m.id
    FROM outbox.message m
    WHERE m.lane IS NULL AND m.id > $2 AND m.id <= $13
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
      AND {claimable_unordered}
    ORDER BY m.id LIMIT $3
), due AS MATERIALIZED (
    SELECT m.id
    FROM outbox.message m
    -- coalesce: without statistics the planner would scan all unordered rows instead of using the index of delayed rows.
    WHERE coalesce(m.lane, -1::smallint) = -1 AND m.available_at <= statement_timestamp()
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND {claimable_unordered}
    ORDER BY m.available_at, m.id LIMIT $3
), picked AS MATERIALIZED (
    SELECT free.id FROM (SELECT id FROM fresh UNION ALL SELECT id FROM due) AS free
    WHERE (SELECT incarnation FROM outbox.server) = $9
    LIMIT $4
), replaced AS (
    -- An expired claim that loses a row is deleted. Its other rows get a new claim, with an id that its worker does not know.
    DELETE FROM outbox.claim c
    WHERE c.id >= $1 AND c.id IN (SELECT e.claim FROM expired_row e WHERE e.id IN (SELECT id FROM picked))
    RETURNING c.id
), remainder AS (
    INSERT INTO outbox.claim (lease_until, ids)
    SELECT '-infinity'::timestamptz, array_agg(e.id)
    FROM expired_row e
    WHERE e.claim IN (SELECT id FROM replaced) AND e.id NOT IN (SELECT id FROM picked)
    GROUP BY e.claim
), inserted AS (
    INSERT INTO outbox.claim (worker, lease_until, ids, maybe_sent)
    SELECT $7::uuid, clock_timestamp() + $8::float8 * interval '1 second', ARRAY(SELECT id FROM picked),
           ARRAY(SELECT id FROM picked WHERE id IN (SELECT e.id FROM expired_row e))
    WHERE EXISTS (SELECT FROM picked)
    RETURNING id
)
SELECT (SELECT id FROM inserted) AS claim, (SELECT min(c.id) FROM outbox.claim c WHERE c.id >= $1) AS lowest
