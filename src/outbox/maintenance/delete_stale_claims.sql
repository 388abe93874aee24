-- Deletes expired claims that name no pending row: their rows were removed, or were published by other means.
DELETE FROM outbox.claim c
WHERE c.lease_until <= clock_timestamp()
  AND NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = ANY (c.ids) AND m.published_at IS NULL AND m.dead_at IS NULL)
