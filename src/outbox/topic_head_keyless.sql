-- The same among the rows without a lane, under a lease like any other of them.
WITH picked AS MATERIALIZED (
    SELECT m.id, m.claim_token IS NOT NULL AS recovered FROM outbox.message m
    WHERE m.lane IS NULL AND m.topic = $1 AND m.id > $2
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND (m.available_at IS NULL OR m.available_at <= clock_timestamp())
      AND (m.lease_until IS NULL OR m.lease_until <= clock_timestamp())
    ORDER BY m.id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE outbox.message m
SET claim_token = $3, lease_until = clock_timestamp() + $4 * interval '1 second'
FROM picked
WHERE m.id = picked.id AND (SELECT incarnation FROM outbox.server) = $5
RETURNING m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at, picked.recovered
