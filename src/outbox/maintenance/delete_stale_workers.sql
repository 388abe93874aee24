-- Rows of workers long gone, once no lane names them any more.
DELETE FROM outbox.worker w
WHERE w.stopped_at < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM outbox.lane l WHERE l.owner = w.id)
