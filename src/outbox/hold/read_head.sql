-- Reads the head of a hold: the refused row that the others of its key wait for.
SELECT {message_columns}
FROM outbox.message m
WHERE m.lane = $1 AND m.id = $2 AND m.published_at IS NULL AND m.dead_at IS NULL
