-- The columns of a message that its row in the history has as well, besides id and created_at.
aggregate_version, message_id, partition, attempts, topic, key, event_type,
aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes, requeued_by, replayed_by
