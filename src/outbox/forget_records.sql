-- Records of workers that are gone and own no lane any more: who took their lanes knows of them.
DELETE FROM outbox.in_flight f
WHERE NOT EXISTS (SELECT FROM outbox.worker w
                  WHERE w.id = f.worker AND (w.stopped_at IS NULL OR EXISTS (SELECT FROM outbox.lane l WHERE l.owner = w.id)))
