-- Published, moved to the history. Fenced as in mark_lanes_keep.sql.
WITH own AS MATERIALIZED (
    SELECT l.lane
    FROM outbox.lane l JOIN unnest($2::smallint[], $3::bigint[]) AS held (lane, epoch)
      ON l.lane = held.lane AND l.epoch = held.epoch
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE OF l
), gone AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
  AND lane = ANY (ARRAY(SELECT lane FROM own))
    RETURNING id, created_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
)
INSERT INTO outbox.history
    (id, created_at, published_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes)
SELECT id, created_at, clock_timestamp(), aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
FROM gone
