-- Samples the inbox for gauges. Each part is counted up to $1, and is ordered so that only its own index fits.
SELECT (SELECT count(*) FROM (SELECT FROM outbox.inbox_message WHERE done_at IS NULL AND poison_at IS NULL AND NOT behind
                              ORDER BY consumer, priority DESC, next_attempt_at LIMIT $1) i)
       + (SELECT count(*) FROM (SELECT FROM outbox.inbox_message WHERE behind ORDER BY consumer LIMIT $1) i) AS unfinished,
       (SELECT count(*) FROM (SELECT FROM outbox.inbox_message WHERE poison_at IS NOT NULL
                              ORDER BY consumer, poison_at LIMIT $1) i) AS poison
