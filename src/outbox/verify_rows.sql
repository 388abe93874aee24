-- Every row of the window, wherever it was put; columns as in a claim, then what became of it. Unordered: one walk over each
-- table is the cheapest way to all of its rows.
SELECT id, lane, message_id, topic, key, partition, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id, aggregate_version, attempts, created_at, published_at, dead_at IS NOT NULL AS dead
FROM outbox.message
WHERE topic = ANY ($1) AND ($2::timestamptz IS NULL OR published_at IS NULL OR published_at >= $2)
UNION ALL
SELECT id, NULL::smallint, message_id, topic, key, partition, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id, aggregate_version, attempts, created_at, published_at, false
FROM outbox.history
WHERE topic = ANY ($1) AND ($2::timestamptz IS NULL OR published_at >= $2)
