-- Published, moved to the history. Fenced as in mark_unordered_keep.sql.
WITH own AS (
    DELETE FROM outbox.claim WHERE id = $2 AND worker = $3 AND (SELECT incarnation FROM outbox.server) = $4
    RETURNING id
), gone AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND EXISTS (SELECT FROM own WHERE set_config('lock_timeout', '250ms', true) <> '')
    RETURNING id, created_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
)
INSERT INTO outbox.history
    (id, created_at, published_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes)
SELECT id, created_at, clock_timestamp(), aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
FROM gone
