-- Claims that are over and name no pending row any more: the rows they waited for were removed, or published in another way.
DELETE FROM outbox.claim c
WHERE c.lease_until <= clock_timestamp()
  AND NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = ANY (c.ids) AND m.published_at IS NULL AND m.dead_at IS NULL)
