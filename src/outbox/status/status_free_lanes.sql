SELECT count(*) AS free
FROM outbox.lane l LEFT JOIN outbox.worker w ON w.id = l.owner AND w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
WHERE l.lane >= 0 AND w.id IS NULL
