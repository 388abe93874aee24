-- One batch per lane we hold, all in one snapshot: what was delayed and is due, then everything pending above the lane's
-- floor and not above where the walk is cut short ($8), oldest first. It writes nothing: the lane's lease is the claim. Who was delayed
-- comes first, since the byte budget may leave behind what comes last. What is held is read only for rows of a topic of which their
-- lane holds some ($4, $5).
SELECT * FROM (
    SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
           outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
           outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
           m.aggregate_version, m.attempts, m.created_at,
           num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts, true AS delayed
    FROM outbox.message m
    -- coalesce: without statistics the planner would rather walk over whole lanes than use the index of delayed rows.
    WHERE m.available_at <= statement_timestamp() AND coalesce(m.lane, -1::smallint) = ANY ($1)
      AND m.published_at IS NULL AND m.dead_at IS NULL
      AND (cardinality($4::smallint[]) = 0
           OR (m.lane, m.topic) NOT IN (SELECT * FROM unnest($4::smallint[], $5::text[]))
           OR NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id)))
      AND (SELECT incarnation FROM outbox.server) = $7
    ORDER BY m.available_at, m.id LIMIT $6
) due
UNION ALL
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
       outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
       outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
       m.aggregate_version, m.attempts, m.created_at,
       num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts, false
FROM unnest($1::smallint[], $2::bigint[], $3::integer[], $8::bigint[]) AS own (lane, floor, most, scan_end)
CROSS JOIN LATERAL (
    SELECT m.*
    FROM outbox.message m
    -- Written so that only the index on (lane, id) fits. With m.lane = own.lane the planner takes the primary key where
    -- one lane has most of the rows, and then every other lane walks over all of them; the same without m.lane <= own.lane.
    WHERE (m.lane, m.id) > (own.lane, own.floor) AND m.lane <= own.lane AND (m.lane, m.id) <= (own.lane, own.scan_end)
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
      AND (cardinality($4::smallint[]) = 0
           OR (m.lane, m.topic) NOT IN (SELECT * FROM unnest($4::smallint[], $5::text[]))
           OR NOT EXISTS (SELECT FROM outbox.holds_of(m.lane, m.topic, m.key, m.partition, m.message_id)))
    ORDER BY m.lane, m.id LIMIT own.most
) m
WHERE (SELECT incarnation FROM outbox.server) = $7
