-- Returns all rows of the window, from both tables, with what became of them. They are not ordered, because one scan of each
-- table is the cheapest way to read all rows. `corrected` says that an operator has replaced the payload.
WITH corrected AS MATERIALIZED (
    SELECT unnest(a.ids) AS id FROM outbox.audit a WHERE a.command = 'dead correct'
)
SELECT {message_columns}, m.published_at, m.dead_at IS NOT NULL AS dead, m.requeued_by, m.replayed_by,
       num_nonnulls(m.requeued_by, m.replayed_by) > 0 AND m.id IN (SELECT c.id FROM corrected c) AS corrected
FROM outbox.message m
WHERE m.topic = ANY ($1) AND ($2::timestamptz IS NULL OR m.published_at IS NULL OR m.published_at >= $2)
UNION ALL
SELECT {message_columns}, m.published_at, false, m.requeued_by, m.replayed_by,
       num_nonnulls(m.requeued_by, m.replayed_by) > 0 AND m.id IN (SELECT c.id FROM corrected c)
FROM (SELECT NULL::smallint AS lane, h.* FROM outbox.history h) m
WHERE m.topic = ANY ($1) AND ($2::timestamptz IS NULL OR m.published_at >= $2)
