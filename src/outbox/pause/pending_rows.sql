-- Counts the pending rows of everything ($1 is NULL), of a topic ($1), or of one key of it ($2). Of each of the two ranges of ids in
-- which pending rows lie, and of the rows whose delay is over, the first $3 are read. is_all is false if there are more.
WITH ranges AS MATERIALIZED (
    {pending_ranges}
), walked AS MATERIALIZED (
    SELECT r.is_passed, m.topic, m.key, m.pending
    FROM ranges r CROSS JOIN LATERAL (
        SELECT m.topic, m.key, {is_pending} AS pending
        FROM outbox.message m
        WHERE m.id > r.low AND m.id <= r.high
        ORDER BY m.id LIMIT $3) m
), due AS MATERIALIZED (
    SELECT m.topic, m.key FROM outbox.message m
    WHERE m.available_at <= statement_timestamp()
    ORDER BY m.available_at LIMIT $3
), pending AS (
    SELECT w.topic, w.key FROM walked w WHERE w.pending
    UNION ALL
    SELECT d.topic, d.key FROM due d
)
SELECT (SELECT count(*) FROM pending p WHERE ($1::text IS NULL OR p.topic = $1) AND ($2::text IS NULL OR p.key = $2)) AS rows,
       NOT EXISTS (SELECT FROM walked w GROUP BY w.is_passed HAVING count(*) >= $3) AND (SELECT count(*) FROM due) < $3 AS is_all
