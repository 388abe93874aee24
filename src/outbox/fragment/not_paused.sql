-- Is the hold (h) tried when it is due, because nothing that it is of is paused?
NOT EXISTS (SELECT FROM outbox.pause WHERE topic IS NULL)
AND h.topic NOT IN (SELECT p.topic FROM outbox.pause p WHERE p.topic IS NOT NULL AND p.key IS NULL)
AND (h.topic, h.unit) NOT IN (SELECT p.topic, 'k:' || p.key FROM outbox.pause p WHERE p.key IS NOT NULL)
