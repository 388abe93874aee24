-- Deletes in-flight entries of workers that have stopped and own no lane: the workers that took their lanes have read them.
DELETE FROM outbox.in_flight f
WHERE NOT EXISTS (SELECT FROM outbox.worker w
                  WHERE w.id = f.worker AND (w.stopped_at IS NULL OR EXISTS (SELECT FROM outbox.lane l WHERE l.owner = w.id)))
