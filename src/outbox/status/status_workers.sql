SELECT w.id, w.name, w.version, extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_left,
       extract(epoch FROM clock_timestamp() - w.started_at)::float8 AS age,
       (SELECT array_agg(l.lane ORDER BY l.lane) FROM outbox.lane l WHERE l.owner = w.id) AS lanes
FROM outbox.worker w
WHERE w.stopped_at IS NULL
ORDER BY w.name, w.started_at
