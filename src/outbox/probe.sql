-- Is there anything to do? One cheap statement for the whole process: at most $3 rows are walked above the
-- lowest floor ($1). Answers the lanes ($2, and -1 for rows without one) with something pending;
-- -2 says the walk was cut short and nothing is known about the rest.
WITH walked AS MATERIALIZED (
    SELECT m.id, m.lane, m.topic, m.key, m.partition,
           m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AS pending
    FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $3
), due AS MATERIALIZED (
    SELECT m.id, m.lane, m.topic, m.key, m.partition
    FROM outbox.message m
    WHERE m.available_at <= statement_timestamp() AND (m.lane = ANY ($2) OR m.lane IS NULL)
    ORDER BY m.available_at LIMIT $3
), found AS (
    SELECT id, lane, topic, key, partition FROM walked WHERE pending
    UNION ALL
    SELECT id, lane, topic, key, partition FROM due
)
SELECT DISTINCT coalesce(f.lane, -1::smallint) AS lane
FROM found f
WHERE (f.lane = ANY ($2)
       -- Claimed already, by a record that is not below $5.
       OR (f.lane IS NULL AND f.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c
                                           WHERE c.id >= $5 AND c.lease_until > clock_timestamp())))
  AND (NOT $4::boolean OR NOT EXISTS (
        SELECT FROM outbox.hold h
        WHERE h.lane = coalesce(f.lane, -1) AND h.topic = f.topic
          AND (h.unit = '' OR h.unit = coalesce('k:' || f.key, 'p:' || f.partition))))
UNION ALL
SELECT -2::smallint WHERE (SELECT count(*) FROM walked) >= $3 OR (SELECT count(*) FROM due) >= $3
