-- The columns of a message (m), in the order that row.rs reads them. `parts` counts the limited columns that have a value in the
-- table.
m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
m.aggregate_version, m.attempts, m.created_at,
num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts,
m.replayed_by IS NOT NULL AS is_repeat
