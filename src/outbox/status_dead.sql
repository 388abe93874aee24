SELECT id, topic, key, attempts, last_error, extract(epoch FROM clock_timestamp() - dead_at)::float8 AS age
FROM outbox.message WHERE dead_at IS NOT NULL ORDER BY id DESC LIMIT $1
