-- Lists at most $8 dead letters that match the filter, the newest first, without the first $9 of them. Each row also says how many
-- match in all. Ordered so that only the index on dead_at fits.
SELECT m.id, m.message_id::text AS message_id, m.topic, m.key, m.partition, m.attempts, m.last_error AS error,
       extract(epoch FROM clock_timestamp() - m.dead_at)::float8 AS age_seconds, m.requeued_by, count(*) OVER () AS matched
FROM outbox.message m
WHERE {dead_filter}
ORDER BY m.dead_at DESC, m.id DESC LIMIT $8 OFFSET $9
