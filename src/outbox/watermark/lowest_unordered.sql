-- Returns the oldest unordered row that is neither published nor dead, delayed or held, claimed or not. If claimed rows were left
-- out, the floor would pass the rows of a worker that died.
SELECT m.id
FROM outbox.message m
WHERE m.lane IS NULL AND m.id > $1 AND m.id <= $3
  AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
  AND NOT EXISTS (SELECT FROM outbox.holds_of(-1::smallint, m.topic, m.key, m.partition, m.message_id))
  AND (SELECT incarnation FROM outbox.server) = $2
ORDER BY m.id LIMIT 1
