-- Gives a dead letter another payload ($2) and sends it again. A JSON payload stays JSON; bytes stay bytes, and a tombstone gets bytes.
SELECT c.operation, c.changed
FROM (SELECT EXISTS (SELECT FROM outbox.message m WHERE m.id = $1 AND m.payload IS NOT NULL) AS is_json) AS kind
CROSS JOIN LATERAL outbox.dead_correct(
    $1, CASE WHEN kind.is_json THEN convert_from($2::bytea, 'UTF8')::jsonb END, CASE WHEN NOT kind.is_json THEN $2::bytea END,
    $3, NULL, $4::text::jsonb) AS c
