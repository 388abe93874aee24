-- Reads the rows of a claim after it was committed, so that no other claim waits while they are transferred. A row that was
-- published or discarded since, by an operator, is left out.
SELECT {message_columns}, m.available_at IS NOT NULL AS delayed,
       m.id IN (SELECT unnest(c.maybe_sent) FROM outbox.claim c WHERE c.id = $1) AS possible_duplicate
FROM outbox.message m
WHERE m.id = ANY (ARRAY(SELECT unnest(c.ids) FROM outbox.claim c WHERE c.id = $1))
  AND m.published_at IS NULL AND m.dead_at IS NULL
  AND (SELECT incarnation FROM outbox.server) = $2
