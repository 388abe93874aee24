-- The rows of a claim, read once it is committed: no other claim waits while rows travel.
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
       outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
       outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
       m.aggregate_version, m.attempts, m.created_at,
       num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts, m.id IN (SELECT unnest(c.maybe_sent) FROM outbox.claim c WHERE c.id = $1) AS recovered
FROM outbox.message m
WHERE m.id = ANY (ARRAY(SELECT unnest(c.ids) FROM outbox.claim c WHERE c.id = $1))
  -- By an operator's hand, since the claim.
  AND m.published_at IS NULL AND m.dead_at IS NULL
  AND (SELECT incarnation FROM outbox.server) = $2
