-- What commands and consumers have counted since the server started; duplicates are sampled by consumer.
SELECT c.granted, c.replayed, c.conflicted, c.taken_over, d.conflicts AS payload_conflicts, d.taken_over AS inbox_taken_over
FROM outbox.idempotency_counters c, outbox.consumer_counters d
