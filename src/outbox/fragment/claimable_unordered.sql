-- Is the message (m) free, of the wanted topic ($5) and partition ($10 of $11), and not kept back by a hold other than $12?
(m.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c WHERE c.id >= $1) OR m.id IN (SELECT e.id FROM expired_row e))
AND (m.xmax = '0' OR EXISTS (SELECT FROM outbox.message o
                             WHERE o.id = m.id AND o.published_at IS NULL AND o.dead_at IS NULL FOR UPDATE SKIP LOCKED))
AND ($5::text IS NULL OR m.topic = $5)
AND ($10::integer IS NULL OR $10 = outbox.murmur2(coalesce(m.key, m.message_id::text)) % $11)
AND (NOT $6::boolean
     OR NOT EXISTS (SELECT FROM outbox.holds_of(-1::smallint, m.topic, m.key, m.partition, m.message_id) AS held (unit)
                    WHERE held.unit IS DISTINCT FROM $12))
