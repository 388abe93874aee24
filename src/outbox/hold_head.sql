-- The row that a hold of a lane waits for.
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at
FROM outbox.message m
WHERE m.lane = $1 AND m.id = $2 AND m.published_at IS NULL AND m.dead_at IS NULL
