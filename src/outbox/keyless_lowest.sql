-- The oldest row without a lane that is neither published nor dead nor parked, whoever has claimed it: from claims alone the
-- floor would pass the rows of a worker that died.
SELECT m.id
FROM outbox.message m
WHERE m.lane IS NULL AND m.id > $1
  AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
  AND NOT EXISTS (SELECT FROM outbox.hold h WHERE h.lane = -1 AND h.topic = m.topic)
  AND (SELECT incarnation FROM outbox.server) = $2
ORDER BY m.id LIMIT 1
