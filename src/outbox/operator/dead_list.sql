-- Lists at most $8 dead letters that match the filter, the newest first, without the first $9 of them. Each row also says how many
-- match in all, of which at most $10 are read. Ordered so that only the index on dead_at fits.
SELECT d.id, d.message_id::text AS message_id, d.topic, d.key, d.partition, d.attempts, d.last_error AS error,
       extract(epoch FROM clock_timestamp() - d.dead_at)::float8 AS age_seconds, d.requeued_by, count(*) OVER () AS matched
FROM (SELECT m.id, m.message_id, m.topic, m.key, m.partition, m.attempts, m.last_error, m.dead_at, m.requeued_by
      FROM outbox.message m
      WHERE {dead_filter}
      ORDER BY m.dead_at DESC, m.id DESC LIMIT $10) AS d
ORDER BY d.dead_at DESC, d.id DESC LIMIT $8 OFFSET $9
