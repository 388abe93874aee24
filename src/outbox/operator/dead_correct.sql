-- Gives a dead letter another payload ($2) and sends it again. A JSON payload stays JSON; bytes stay bytes, and a tombstone gets bytes.
SELECT c.operation, c.changed
FROM outbox.message m
CROSS JOIN LATERAL outbox.dead_correct(
    m.id, CASE WHEN m.payload IS NOT NULL THEN convert_from($2::bytea, 'UTF8')::jsonb END, CASE WHEN m.payload IS NULL THEN $2::bytea END,
    $3, NULL, $4::text::jsonb) AS c
WHERE m.id = $1 AND m.dead_at IS NOT NULL
