-- Is there anything to do, and if it is little, what? One statement for the whole process: at most $3 rows are walked above
-- the lowest floor ($1). Answers the pending rows of the lanes asked for ($2), all of them and no more than $5, and whether there
-- are rows without a lane; or that there is more than this (cut), and then nothing is known. At least one row, but on another
-- server than the term began on ($6).
WITH walked AS MATERIALIZED (
    SELECT m.id, m.lane, m.topic, m.key, m.partition,
           m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AS pending
    FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $3
), due AS MATERIALIZED (
    SELECT m.id, m.lane, m.topic, m.key, m.partition
    FROM outbox.message m
    WHERE m.available_at <= statement_timestamp() AND (m.lane = ANY ($2) OR m.lane IS NULL)
      -- Here as well as below: many rows that are due and held would cut every look.
      AND (NOT $4::boolean OR NOT EXISTS (
            SELECT FROM outbox.hold h
            WHERE h.lane = coalesce(m.lane, -1) AND h.topic = m.topic
              AND (h.unit = '' OR h.unit = coalesce('k:' || m.key, 'p:' || m.partition))))
    ORDER BY m.available_at LIMIT $3
), found AS MATERIALIZED (
    SELECT f.id, f.lane, f.delayed
    FROM (
        SELECT id, lane, topic, key, partition, false AS delayed FROM walked WHERE pending
        UNION ALL
        SELECT id, lane, topic, key, partition, true FROM due
    ) f
    WHERE (f.lane = ANY ($2)
           -- Claimed already, by a record that is not below $7.
           OR (f.lane IS NULL AND f.id NOT IN (SELECT unnest(c.ids) FROM outbox.claim c
                                               WHERE c.id >= $7 AND c.lease_until > clock_timestamp())))
      AND (NOT $4::boolean OR NOT EXISTS (
            SELECT FROM outbox.hold h
            WHERE h.lane = coalesce(f.lane, -1) AND h.topic = f.topic
              AND (h.unit = '' OR h.unit = coalesce('k:' || f.key, 'p:' || f.partition))))
), seen AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM found WHERE lane IS NULL) AS keyless,
           (SELECT count(*) FROM walked) >= $3 OR (SELECT count(*) FROM due) >= $3
           OR (SELECT count(*) FROM found WHERE lane IS NOT NULL) > $5 AS cut
)
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition, m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id, m.aggregate_version, m.attempts, m.created_at,
       m.id = ANY (ARRAY(SELECT id FROM found WHERE delayed)) AS delayed, seen.keyless, seen.cut
FROM seen LEFT JOIN outbox.message m
  -- By an array of ids, not by a join: a join may walk the whole table.
  ON m.id = ANY (ARRAY(SELECT id FROM found WHERE lane IS NOT NULL AND NOT (SELECT cut FROM seen)))
WHERE (SELECT incarnation FROM outbox.server) = $6
