-- Claims unordered rows, after lock_unordered_claims.sql: a row of outbox.claim names them, and nothing is written to the rows themselves. What is
-- pending above the floor ($2) and not above $13, and what was delayed and is due, at most $3 of each and $4 in all; of one topic ($5), if
-- one is given, and of its partition $10 of $11, if one is given. Where there are holds ($6), not what one keeps back, except for the hold
-- of unit $12. A row is free if no claim names it, or one whose lease is over, and if no transaction has locked it: its mark would wait for
-- that lock, and its refusal could not be written. A row is locked to find that out only where a transaction has left a trace in it (xmax).
-- There is no claim below $1. Returns the id of the new claim, NULL if nothing was free, and the lowest id that is left.
WITH expired AS MATERIALIZED (
    -- Locked, so that a claim and a late mark exclude each other. Where a mark was first, its rows are left to it.
    SELECT c.id, c.ids FROM outbox.claim c
    WHERE c.id >= $1 AND c.lease_until <= clock_timestamp()
    ORDER BY c.id FOR UPDATE SKIP LOCKED
), suspect AS MATERIALIZED (
    SELECT e.id AS claim, named.id FROM expired e, unnest(e.ids) AS named (id)
), fresh AS MATERIALIZED (
    SELECT m.id
    FROM outbox.message m
    WHERE m.lane IS NULL AND m.id > $2 AND m.id <= $13
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
      AND (m.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c WHERE c.id >= $1) OR m.id IN (SELECT s.id FROM suspect s))
      AND (m.xmax = '0' OR EXISTS (SELECT FROM outbox.message o
                                   WHERE o.id = m.id AND o.published_at IS NULL AND o.dead_at IS NULL FOR UPDATE SKIP LOCKED))
      AND ($5::text IS NULL OR m.topic = $5)
      AND ($10::integer IS NULL OR $10 = outbox.murmur2(coalesce(m.key, m.message_id::text)) % $11)
      AND (NOT $6::boolean
           OR NOT EXISTS (SELECT FROM outbox.holds_of(-1::smallint, m.topic, m.key, m.partition, m.message_id) AS held (unit)
                          WHERE held.unit IS DISTINCT FROM $12))
    ORDER BY m.id LIMIT $3
), due AS MATERIALIZED (
    SELECT m.id
    FROM outbox.message m
    -- coalesce: without statistics the planner would rather scan all such rows than use the index of delayed ones.
    WHERE coalesce(m.lane, -1::smallint) = -1 AND m.available_at <= statement_timestamp()
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND (m.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c WHERE c.id >= $1) OR m.id IN (SELECT s.id FROM suspect s))
      AND (m.xmax = '0' OR EXISTS (SELECT FROM outbox.message o
                                   WHERE o.id = m.id AND o.published_at IS NULL AND o.dead_at IS NULL FOR UPDATE SKIP LOCKED))
      AND ($5::text IS NULL OR m.topic = $5)
      AND ($10::integer IS NULL OR $10 = outbox.murmur2(coalesce(m.key, m.message_id::text)) % $11)
      AND (NOT $6::boolean
           OR NOT EXISTS (SELECT FROM outbox.holds_of(-1::smallint, m.topic, m.key, m.partition, m.message_id) AS held (unit)
                          WHERE held.unit IS DISTINCT FROM $12))
    ORDER BY m.available_at, m.id LIMIT $3
), picked AS MATERIALIZED (
    SELECT free.id FROM (SELECT id FROM fresh UNION ALL SELECT id FROM due) AS free
    WHERE (SELECT incarnation FROM outbox.server) = $9
    LIMIT $4
), ended AS (
    -- A claim that loses one row is deleted: what is left of it is written anew, under an id its worker does not know.
    DELETE FROM outbox.claim c
    WHERE c.id >= $1 AND c.id IN (SELECT s.claim FROM suspect s WHERE s.id IN (SELECT id FROM picked))
    RETURNING c.id
), remainder AS (
    INSERT INTO outbox.claim (lease_until, ids)
    SELECT '-infinity'::timestamptz, array_agg(s.id)
    FROM suspect s
    WHERE s.claim IN (SELECT id FROM ended) AND s.id NOT IN (SELECT id FROM picked)
    GROUP BY s.claim
), made AS (
    INSERT INTO outbox.claim (worker, lease_until, ids, maybe_sent)
    SELECT $7::uuid, clock_timestamp() + $8::float8 * interval '1 second', ARRAY(SELECT id FROM picked),
           ARRAY(SELECT id FROM picked WHERE id IN (SELECT s.id FROM suspect s))
    WHERE EXISTS (SELECT FROM picked)
    RETURNING id
)
SELECT (SELECT id FROM made) AS claim, (SELECT min(c.id) FROM outbox.claim c WHERE c.id >= $1) AS lowest
