-- Polls for pending rows, and returns them if there are few. One statement serves the whole process, and scans at most $3 rows
-- above the lowest floor ($1). Returns all pending rows of the wanted lanes ($2), if they are at most $5, and whether there are
-- unclaimed unordered rows. If there is more than that, `cut` is true and the answer says nothing about any lane. Also returns
-- the lowest unordered row, claimed or not. Returns at least one row, but none if the server is not the incarnation of the term
-- ($6). Most of the rows scanned are published. They are only counted, and only the ids of the others are kept.
WITH summary AS MATERIALIZED (
    SELECT array_agg(s.id) FILTER (WHERE s.ready AND s.lane IS NOT NULL) AS ids,
           array_agg(s.id) FILTER (WHERE s.delayed AND s.lane IS NOT NULL) AS due,
           -- No claim has an id below $7.
           count(*) FILTER (WHERE s.ready AND s.lane IS NULL
                              AND s.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c
                                               WHERE c.id >= $7 AND c.lease_until > clock_timestamp())) > 0 AS unordered,
           min(s.id) FILTER (WHERE s.ready AND NOT s.delayed AND s.lane IS NULL) AS lowest_unordered,
           count(*) FILTER (WHERE NOT s.delayed) >= $3 OR count(*) FILTER (WHERE s.delayed) >= $3
           OR count(*) FILTER (WHERE s.ready AND s.lane IS NOT NULL) > $5 AS cut
    FROM (
        (SELECT m.id, m.lane, false AS delayed,
                m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AND (m.lane = ANY ($2) OR m.lane IS NULL)
                AND (NOT $4::boolean
                     OR NOT EXISTS (SELECT FROM outbox.holds_of(coalesce(m.lane, -1::smallint), m.topic, m.key, m.partition, m.message_id))) AS ready
         FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $3)
        UNION ALL
        -- Delayed rows that are held are left out before the limit. Otherwise many of them would cut every poll.
        (SELECT m.id, m.lane, true, true
         FROM outbox.message m
         WHERE m.available_at <= statement_timestamp() AND (m.lane = ANY ($2) OR m.lane IS NULL)
           AND (NOT $4::boolean
                OR NOT EXISTS (SELECT FROM outbox.holds_of(coalesce(m.lane, -1::smallint), m.topic, m.key, m.partition, m.message_id)))
         ORDER BY m.available_at LIMIT $3)
    ) s
)
SELECT {message_columns},
       coalesce(m.id = ANY (summary.due), false) AS delayed, summary.unordered, summary.cut, summary.lowest_unordered
FROM summary LEFT JOIN outbox.message m
  -- By an array of ids, not by a join: a join may scan the whole table.
  ON m.id = ANY ((SELECT ids FROM summary WHERE NOT cut)::bigint[])
WHERE (SELECT incarnation FROM outbox.server) = $6
