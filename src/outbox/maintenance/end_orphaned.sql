-- Fails for good up to $2 commands whose lock expired more than $1 seconds ago.
SELECT outbox.idempotency_end_orphaned($1 * interval '1 second', $2) AS ended
