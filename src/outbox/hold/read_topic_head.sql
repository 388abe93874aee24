-- The oldest pending row that a hold of a topic, or of its partition $4 of $5, keeps back in one lane and no other hold does: of what
-- another one keeps back, older rows of the same key may lie below where this one resumes. The hold is read here, not when it was found due:
-- another of its topic may have been released meanwhile and have left it rows further down. None of $6: Kafka has those already.
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
       outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
       outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
       m.aggregate_version, m.attempts, m.created_at,
       num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts
FROM outbox.message m
WHERE m.lane = $1 AND m.topic = $2
  AND m.id > (SELECT h.resume_floor FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = $3)
  AND m.published_at IS NULL AND m.dead_at IS NULL AND m.id <> ALL ($6::bigint[])
  AND (m.available_at IS NULL OR m.available_at <= clock_timestamp())
  AND ($4::integer IS NULL OR $4 = coalesce(m.partition, outbox.murmur2(coalesce(m.key, m.message_id::text)) % $5))
  AND NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id) AS held (unit) WHERE held.unit <> $3)
ORDER BY m.id LIMIT 1
