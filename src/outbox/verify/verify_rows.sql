-- Returns all rows of the window, from both tables, with what became of them. They are not ordered, because one scan of each
-- table is the cheapest way to read all rows.
SELECT {message_columns}, m.published_at, m.dead_at IS NOT NULL AS dead
FROM outbox.message m
WHERE m.topic = ANY ($1) AND ($2::timestamptz IS NULL OR m.published_at IS NULL OR m.published_at >= $2)
UNION ALL
SELECT {message_columns}, m.published_at, false
FROM (SELECT NULL::smallint AS lane, h.* FROM outbox.history h) m
WHERE m.topic = ANY ($1) AND ($2::timestamptz IS NULL OR m.published_at >= $2)
