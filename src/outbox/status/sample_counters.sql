-- Returns the counters of commands and consumers since the server started. Duplicates are sampled by consumer
-- (sample_duplicates.sql).
SELECT c.granted, c.replayed, c.conflicted, c.taken_over, d.conflicts AS payload_conflicts, d.taken_over AS inbox_taken_over
FROM outbox.idempotency_counters c, outbox.consumer_counters d
