SELECT w.id::text AS id, w.name, w.version, extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_left_seconds,
       extract(epoch FROM clock_timestamp() - w.started_at)::float8 AS age_seconds,
       ARRAY(SELECT l.lane FROM outbox.lane l WHERE l.owner = w.id ORDER BY l.lane) AS lanes
FROM outbox.worker w
WHERE w.stopped_at IS NULL
ORDER BY w.name, w.started_at
