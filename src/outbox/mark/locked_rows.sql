-- Returns which of these pending rows another transaction has locked.
SELECT m.id FROM outbox.message m
WHERE m.id = ANY ($1::bigint[]) AND m.published_at IS NULL AND m.dead_at IS NULL
  AND NOT EXISTS (SELECT FROM outbox.message free WHERE free.id = m.id FOR UPDATE SKIP LOCKED)
