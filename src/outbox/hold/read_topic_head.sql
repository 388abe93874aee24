-- Reads the oldest pending row of a lane that a hold of a topic, or of its partition $4 of $5, keeps back and no other hold does.
-- A row that another hold keeps back as well is left out, because older rows of its key may lie below the resume floor of this
-- hold. The resume floor is read here and not when the hold was found due, because another release may have lowered it. Rows that
-- Kafka already has ($6) are left out, and so are those of paused keys ($7), which must not keep the others waiting.
SELECT {message_columns}
FROM outbox.message m
WHERE m.lane = $1 AND m.topic = $2
  AND m.id > (SELECT h.resume_floor FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = $3)
  AND m.published_at IS NULL AND m.dead_at IS NULL AND m.id <> ALL ($6::bigint[])
  AND (m.key IS NULL OR m.key <> ALL ($7::text[]))
  AND (m.available_at IS NULL OR m.available_at <= clock_timestamp())
  AND ($4::integer IS NULL OR $4 = coalesce(m.partition, outbox.murmur2(coalesce(m.key, m.message_id::text)) % $5))
  AND NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id) AS held (unit) WHERE held.unit <> $3)
ORDER BY m.id LIMIT 1
