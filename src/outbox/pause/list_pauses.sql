-- Returns pauses, those that cover most first.
SELECT p.topic, p.key, p.reason, p.login::text AS login, extract(epoch FROM clock_timestamp() - p.at)::float8 AS age_seconds
FROM outbox.pause p
ORDER BY p.topic IS NOT NULL, p.key IS NOT NULL, p.topic, p.key LIMIT $1
