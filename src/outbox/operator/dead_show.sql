-- Reads one dead letter.
SELECT {message_columns}, m.last_error AS error, extract(epoch FROM clock_timestamp() - m.dead_at)::float8 AS age_seconds, m.requeued_by
FROM outbox.message m
WHERE m.id = $1 AND m.dead_at IS NOT NULL
