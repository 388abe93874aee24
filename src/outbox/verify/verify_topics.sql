-- The first statement of a verification; it takes the snapshot. Counts the rows of each topic, and returns when its oldest was
-- published.
SELECT topic, count(*) AS rows, min(published_at) AS oldest
FROM (
    SELECT topic, published_at FROM outbox.message
    UNION ALL
    SELECT topic, published_at FROM outbox.history
) kept
WHERE ($1::text[] IS NULL OR topic = ANY ($1))
  -- Pending and dead rows have no publishing time, and belong to every window.
  AND ($2::timestamptz IS NULL OR published_at IS NULL OR published_at >= $2)
GROUP BY topic ORDER BY topic
