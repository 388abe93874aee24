-- Published, moved to the history. Fenced as in mark_lanes_keep.sql.
WITH own AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
      AND l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $4
    ORDER BY l.lane FOR SHARE
), timeout AS MATERIALIZED (
    SELECT set_config('lock_timeout', '250ms', true) FROM (SELECT count(*) FROM own) AS all_of_them
), settled AS (
    DELETE FROM outbox.in_flight
    WHERE id = ANY ($6::bigint[]) AND (SELECT count(*) FROM own) = cardinality($2::smallint[])
), gone AS (
    DELETE FROM outbox.message
    WHERE id = ANY ($5::bigint[]) AND published_at IS NULL AND dead_at IS NULL
      AND coalesce(lane, -1::smallint) = ANY (ARRAY(SELECT lane FROM own WHERE EXISTS (SELECT FROM timeout)))
    RETURNING id, created_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
)
INSERT INTO outbox.history
    (id, created_at, published_at, aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes)
SELECT id, created_at, clock_timestamp(), aggregate_version, message_id, partition, attempts, topic, key, event_type,
     aggregate_type, aggregate_id, idempotency_scope, idempotency_key, headers, payload, payload_bytes
FROM gone
