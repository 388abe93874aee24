-- Every row of the window, wherever it was put; columns as in a claim, then what became of it. Unordered: one scan over each
-- table is the cheapest way to all of its rows. A message of more than 64 MiB, or one that PostgreSQL cannot read, does not come whole.
SELECT id, lane, message_id, topic, key, partition,
       outbox.limit_bytes(payload, 67108864), outbox.limit_bytes(payload_bytes, 67108864), outbox.limit_bytes(headers, 67108864),
       outbox.limit_bytes(event_type, 67108864), outbox.limit_bytes(aggregate_type, 67108864), outbox.limit_bytes(aggregate_id, 67108864),
       aggregate_version, attempts, created_at,
       num_nonnulls(payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id) AS parts,
       published_at, dead_at IS NOT NULL AS dead
FROM outbox.message
WHERE topic = ANY ($1) AND ($2::timestamptz IS NULL OR published_at IS NULL OR published_at >= $2)
UNION ALL
SELECT id, NULL::smallint, message_id, topic, key, partition,
       outbox.limit_bytes(payload, 67108864), outbox.limit_bytes(payload_bytes, 67108864), outbox.limit_bytes(headers, 67108864),
       outbox.limit_bytes(event_type, 67108864), outbox.limit_bytes(aggregate_type, 67108864), outbox.limit_bytes(aggregate_id, 67108864),
       aggregate_version, attempts, created_at,
       num_nonnulls(payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id),
       published_at, false
FROM outbox.history
WHERE topic = ANY ($1) AND ($2::timestamptz IS NULL OR published_at >= $2)
