-- What the way in has counted, and what waits in the inbox; at most $1 messages of each kind are looked at. Ordered as their
-- indexes are, so that these are used, with or without statistics.
SELECT c.granted, c.replayed, c.conflicted, d.duplicates_suppressed, d.conflicts AS payload_conflicts,
       i.unfinished, i.due, i.oldest_seconds, p.poison
FROM outbox.idempotency_suppression c, outbox.consumer_counters d,
     LATERAL (
         SELECT count(*) AS unfinished,
                count(*) FILTER (WHERE m.next_attempt_at <= clock_timestamp()) AS due,
                coalesce(extract(epoch FROM clock_timestamp() - min(m.received_at)), 0)::float8 AS oldest_seconds
         FROM (SELECT received_at, next_attempt_at FROM outbox.inbox_message
               WHERE done_at IS NULL AND poison_at IS NULL
               ORDER BY consumer, priority DESC, next_attempt_at, id LIMIT $1) AS m
     ) AS i,
     LATERAL (
         SELECT count(*) AS poison
         FROM (SELECT FROM outbox.inbox_message WHERE poison_at IS NOT NULL ORDER BY consumer, poison_at LIMIT $1) AS m
     ) AS p
