-- The topics that messages of the last day, pending messages and holds name, with what is pending of each, most first. At most $1
-- rows of each part are read, in the order of an index, and the $2 first topics are returned. Only lengths are read of a message:
-- of a payload in JSON the stored one, since its text is not there without reading it.
WITH ranges AS MATERIALIZED (
    {pending_ranges}
), sampled AS MATERIALIZED (
    SELECT m.* FROM ranges r CROSS JOIN LATERAL (
        SELECT m.id, m.topic, m.partition, m.created_at, {is_pending} AS pending, {message_length} AS bytes
        FROM outbox.message m WHERE m.id > r.low AND m.id <= r.high ORDER BY m.id LIMIT $1) m
    UNION ALL
    (SELECT m.id, m.topic, m.partition, m.created_at, true, {message_length}
     FROM outbox.message m WHERE m.available_at IS NOT NULL ORDER BY m.available_at LIMIT $1)
    UNION ALL
    (SELECT m.id, m.topic, m.partition, m.created_at, {is_pending}, {message_length}
     FROM outbox.message m ORDER BY m.id DESC LIMIT $1)
    UNION ALL
    -- now() and not clock_timestamp(): by a volatile function no partition is skipped.
    (SELECT h.id, h.topic, h.partition, h.created_at, false, 0
     FROM outbox.history h WHERE h.published_at > now() - interval '1 day' LIMIT $1)
    UNION ALL
    (SELECT 0, h.topic, NULL, clock_timestamp(), false, 0 FROM outbox.hold h LIMIT $1)
)
SELECT topic, count(DISTINCT id) FILTER (WHERE pending) AS pending,
       max(bytes) FILTER (WHERE pending) AS largest_bytes, max(partition) FILTER (WHERE pending) AS highest_partition
FROM sampled
WHERE pending OR created_at > clock_timestamp() - interval '1 day'
GROUP BY topic
ORDER BY pending DESC, topic LIMIT $2
