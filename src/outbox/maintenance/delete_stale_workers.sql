-- Deletes workers that stopped more than an hour ago and own no lane.
DELETE FROM outbox.worker w
WHERE w.stopped_at < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM outbox.lane l WHERE l.owner = w.id)
