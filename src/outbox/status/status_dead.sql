SELECT id, topic, key, attempts, last_error AS error, extract(epoch FROM clock_timestamp() - dead_at)::float8 AS age_seconds
FROM outbox.message WHERE dead_at > '-infinity' ORDER BY dead_at DESC LIMIT $1
