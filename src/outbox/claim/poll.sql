-- Is there anything to do, and if it is little, what? One statement for the whole process: at most $3 rows are walked above
-- the lowest floor ($1). Answers the pending rows of the lanes asked for ($2), all of them and no more than $5, and whether there
-- are unordered rows; or that there is more than this (cut), and then nothing is known. At least one row, but on another
-- server than the term began on ($6). Beside that it answers the lowest unordered row, whoever has claimed it.
-- What is walked is mostly published already: it is counted in passing, and only ids of what is free are kept.
WITH seen AS MATERIALIZED (
    SELECT array_agg(f.id) FILTER (WHERE f.free AND f.lane IS NOT NULL) AS ids,
           array_agg(f.id) FILTER (WHERE f.delayed AND f.lane IS NOT NULL) AS due,
           -- Claimed already, by a record that is not below $7.
           count(*) FILTER (WHERE f.free AND f.lane IS NULL
                              AND f.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c
                                               WHERE c.id >= $7 AND c.lease_until > clock_timestamp())) > 0 AS unordered,
           min(f.id) FILTER (WHERE f.free AND NOT f.delayed AND f.lane IS NULL) AS lowest_unordered,
           count(*) FILTER (WHERE NOT f.delayed) >= $3 OR count(*) FILTER (WHERE f.delayed) >= $3
           OR count(*) FILTER (WHERE f.free AND f.lane IS NOT NULL) > $5 AS cut
    FROM (
        (SELECT m.id, m.lane, false AS delayed,
                m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AND (m.lane = ANY ($2) OR m.lane IS NULL)
                AND (NOT $4::boolean
                     OR NOT EXISTS (SELECT FROM outbox.holds_of(coalesce(m.lane, -1::smallint), m.topic, m.key, m.partition, m.message_id))) AS free
         FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $3)
        UNION ALL
        -- No more of them than fit, and none that is held: many rows that are due and held would cut every look.
        (SELECT m.id, m.lane, true, true
         FROM outbox.message m
         WHERE m.available_at <= statement_timestamp() AND (m.lane = ANY ($2) OR m.lane IS NULL)
           AND (NOT $4::boolean
                OR NOT EXISTS (SELECT FROM outbox.holds_of(coalesce(m.lane, -1::smallint), m.topic, m.key, m.partition, m.message_id)))
         ORDER BY m.available_at LIMIT $3)
    ) f
)
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
       outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
       outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
       m.aggregate_version, m.attempts, m.created_at,
       num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts,
       coalesce(m.id = ANY (seen.due), false) AS delayed, seen.unordered, seen.cut, seen.lowest_unordered
FROM seen LEFT JOIN outbox.message m
  -- By an array of ids, not by a join: a join may walk the whole table.
  ON m.id = ANY ((SELECT ids FROM seen WHERE NOT cut)::bigint[])
WHERE (SELECT incarnation FROM outbox.server) = $6
