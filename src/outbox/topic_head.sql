-- The oldest pending row of a sick topic in one lane that no key of its own keeps back. The hold is read here, not when it was found
-- due: a key of its topic may have been released meanwhile and have left it rows further down.
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at
FROM outbox.message m
WHERE m.lane = $1 AND m.topic = $2
  AND m.id > (SELECT h.resume_floor FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = '')
  AND m.published_at IS NULL AND m.dead_at IS NULL
  AND (m.available_at IS NULL OR m.available_at <= clock_timestamp())
  AND NOT EXISTS (SELECT FROM outbox.hold h
                  WHERE h.lane = m.lane AND h.topic = m.topic AND h.unit = coalesce('k:' || m.key, 'p:' || m.partition))
ORDER BY m.id LIMIT 1
