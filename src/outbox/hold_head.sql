-- The row a hold waits for: the refused one, or the oldest pending row of a sick topic that no other hold keeps back.
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at
FROM outbox.message m
WHERE m.lane = $1 AND m.id = $2 AND m.published_at IS NULL AND m.dead_at IS NULL
