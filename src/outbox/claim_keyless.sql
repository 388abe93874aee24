-- Rows without a lane: claimed one by one with a lease of their own; whoever finds an expired lease takes it over.
-- MATERIALIZED: the planner may otherwise update more than LIMIT.
WITH fresh AS MATERIALIZED (
    SELECT m.id, m.claim_token IS NOT NULL AS recovered
    FROM outbox.message m
    WHERE m.lane IS NULL AND m.id > $1
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
      AND (m.lease_until IS NULL OR m.lease_until <= clock_timestamp())
      AND (NOT $5::boolean OR NOT EXISTS (SELECT FROM outbox.hold h WHERE h.lane = -1 AND h.topic = m.topic))
    ORDER BY m.id LIMIT $2 FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT m.id, m.claim_token IS NOT NULL AS recovered
    FROM outbox.message m
    -- coalesce: without statistics the planner would rather walk over all such rows than use the index of delayed ones.
    WHERE coalesce(m.lane, -1::smallint) = -1 AND m.available_at <= statement_timestamp()
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND (m.lease_until IS NULL OR m.lease_until <= clock_timestamp())
      AND (NOT $5::boolean OR NOT EXISTS (SELECT FROM outbox.hold h WHERE h.lane = -1 AND h.topic = m.topic))
    ORDER BY m.available_at, m.id LIMIT $2 FOR UPDATE SKIP LOCKED
), picked AS MATERIALIZED (
    SELECT id, recovered FROM fresh UNION ALL SELECT id, recovered FROM due
)
UPDATE outbox.message m
SET claim_token = $3, lease_until = clock_timestamp() + $4 * interval '1 second'
-- By an array of ids, not by a join: a join may walk the whole table.
WHERE m.id = ANY (ARRAY(SELECT id FROM picked)) AND (SELECT incarnation FROM outbox.server) = $6
RETURNING m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at, m.id = ANY (ARRAY(SELECT id FROM picked WHERE recovered)) AS recovered
