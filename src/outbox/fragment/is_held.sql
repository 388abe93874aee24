-- Does a hold keep back the message (m), or a pause of everything? Where a partition of its topic is paused, every message of the
-- topic counts as held, because reading the holds by partition would need the partition of each message.
(EXISTS (SELECT FROM outbox.pause WHERE topic IS NULL)
 OR EXISTS (SELECT FROM outbox.hold)
    AND (EXISTS (SELECT FROM outbox.hold h
                 WHERE h.lane = coalesce(m.lane, -1::smallint) AND h.topic = m.topic
                   AND h.unit = ANY (ARRAY['', coalesce('k:' || m.key, 'p:' || m.partition)]))
         OR EXISTS (SELECT FROM outbox.hold h
                    WHERE h.lane = coalesce(m.lane, -1::smallint) AND h.topic = m.topic AND h.partition IS NOT NULL)))
