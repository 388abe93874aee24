-- What the way in has counted since the server started.
SELECT c.granted, c.replayed, c.conflicted, d.duplicates_suppressed, d.conflicts AS payload_conflicts
FROM outbox.idempotency_suppression c, outbox.consumer_counters d
