-- Claims one batch for each lane ($1), all in one snapshot, and writes nothing: the lease of a lane is the claim. First it
-- returns at most $6 delayed rows that are due, because the byte budget drops what comes last. Then it returns, for each lane,
-- the oldest pending rows above its floor ($2) and up to the end of its scan ($8), at most $3. Holds are read only for rows of a
-- topic ($5) of which the lane ($4) has some.
SELECT * FROM (
    SELECT {message_columns}, true AS delayed
    FROM outbox.message m
    -- coalesce: without statistics the planner would scan whole lanes instead of using the index of delayed rows.
    WHERE m.available_at <= statement_timestamp() AND coalesce(m.lane, -1::smallint) = ANY ($1)
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND (cardinality($4::smallint[]) = 0
           OR (m.lane, m.topic) NOT IN (SELECT * FROM unnest($4::smallint[], $5::text[]))
           OR NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id)))
      AND (SELECT incarnation FROM outbox.server) = $7
    ORDER BY m.available_at, m.id LIMIT $6
) due
UNION ALL
SELECT {message_columns}, false
FROM unnest($1::smallint[], $2::bigint[], $3::integer[], $8::bigint[]) AS own (lane, floor, most, scan_end)
CROSS JOIN LATERAL (
    SELECT m.*
    FROM outbox.message m
    -- Written so that only the index on (lane, id) fits. With m.lane = own.lane, or without m.lane <= own.lane, the planner takes
    -- the primary key where one lane has most of the rows, and then every other lane scans all of them.
    WHERE (m.lane, m.id) > (own.lane, own.floor) AND m.lane <= own.lane AND (m.lane, m.id) <= (own.lane, own.scan_end)
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
      AND (cardinality($4::smallint[]) = 0
           OR (m.lane, m.topic) NOT IN (SELECT * FROM unnest($4::smallint[], $5::text[]))
           OR NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id)))
    ORDER BY m.lane, m.id LIMIT own.most
) m
WHERE (SELECT incarnation FROM outbox.server) = $7
