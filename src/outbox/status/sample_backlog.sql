-- Samples the backlog for gauges, in all and by topic. Pending rows lie above the stored floors, and held ones below them as well,
-- above the resume floor of their hold. Of each of these two ranges of ids the first $1 rows are read, and if that does not reach
-- its end, the rows of the last 2,500 ids, which are pending if anything is. What is between is estimated: 50 short ranges of 50 ids
-- each, evenly spread over it, stand for all of it.
--
-- The last rows are found by their ids: a scan that begins at the end of the index may pass millions of deleted rows before it
-- finds one.
--
-- A row whose delay is over is pending wherever it lies, and since then. The first $1 of these are counted.
--
-- Holds of what is paused are not counted.
--
-- The oldest row that nothing keeps back is looked for among those rows, and by their holds only if there is one. Where a partition
-- is paused, every row of its topic counts as held, because to tell them apart would need the partition of each.
--
-- Returned by name are the topics of $2, and of the others the 50 with the most rows.
WITH ranges AS MATERIALIZED (
    {pending_ranges}
), walked AS MATERIALIZED (
    SELECT r.is_passed, m.*
    FROM ranges r CROSS JOIN LATERAL (
        SELECT m.id, m.lane, m.topic, m.key, m.partition, m.created_at, {is_pending} AS pending
        FROM outbox.message m
        WHERE m.id > r.low AND m.id <= r.high
        ORDER BY m.id LIMIT $1) m
), unread AS MATERIALIZED (
    SELECT max(w.id) AS low, least(max(r.high), max(s.last_value)) AS high
    FROM walked w JOIN ranges r USING (is_passed) CROSS JOIN outbox.message_id_seq s
    GROUP BY is_passed HAVING count(*) >= $1
), between_ends AS MATERIALIZED (
    SELECT u.low, u.high - 2500 AS high, s.step, least(s.step, 50) AS width
    FROM unread u CROSS JOIN LATERAL (SELECT greatest((u.high - 2500 - u.low) / 50, 1) AS step) s
    WHERE u.high - 2500 > u.low
), due AS MATERIALIZED (
    -- Ordered so that only the index meant for it fits. Without statistics the planner would scan the whole table.
    SELECT m.lane, m.topic, m.key, m.partition, m.available_at FROM outbox.message m
    WHERE m.available_at <= statement_timestamp()
    ORDER BY m.available_at LIMIT $1
), backlog AS NOT MATERIALIZED (
    -- Read a second time only while something is held.
    SELECT w.lane, w.topic, w.key, w.partition, w.created_at AS since, 1::float8 AS weight FROM walked w WHERE w.pending
    UNION ALL
    SELECT d.lane, d.topic, d.key, d.partition, d.available_at, 1 FROM due d
    UNION ALL
    SELECT m.lane, m.topic, m.key, m.partition, m.created_at, 1
    FROM unread u CROSS JOIN LATERAL (
        SELECT m.lane, m.topic, m.key, m.partition, m.created_at, {is_pending} AS pending
        FROM outbox.message m
        WHERE m.id > greatest(u.low, u.high - 2500) AND m.id <= u.high
        ORDER BY m.id LIMIT 2500) m
    WHERE m.pending
    UNION ALL
    -- Each row stands for as many ids as there are for each that is read. A short range lies in the middle of its fiftieth of the
    -- rest. At the beginning, the few rows behind those that were read would stand for a whole fiftieth.
    SELECT m.lane, m.topic, m.key, m.partition, m.created_at, (b.high - b.low)::float8 / (b.width * least(b.high - b.low, 50))
    FROM between_ends b CROSS JOIN generate_series(0, 49) n
         CROSS JOIN LATERAL (SELECT b.low + n * b.step + (b.step - b.width) / 2 AS low) s
         CROSS JOIN LATERAL (
        SELECT m.lane, m.topic, m.key, m.partition, m.created_at, {is_pending} AS pending
        FROM outbox.message m
        WHERE m.id > s.low AND m.id <= least(s.low + b.width, b.high)
        ORDER BY m.id LIMIT 50) m
    WHERE m.pending
), topics AS MATERIALIZED (
    SELECT t.topic, sum(t.pending) AS pending, sum(t.dead) AS dead, min(t.since) AS oldest
    FROM (SELECT topic, weight AS pending, 0 AS dead, since FROM backlog
          UNION ALL
          SELECT topic, 0, 1, NULL FROM (SELECT topic FROM outbox.message WHERE dead_at > '-infinity' ORDER BY dead_at LIMIT $1) d) t
    GROUP BY t.topic
), unheld AS MATERIALIZED (
    SELECT b.topic, min(b.since) AS oldest
    FROM (SELECT coalesce(lane, -1::smallint) AS lane, topic, coalesce('k:' || key, 'p:' || partition) AS unit, since FROM backlog) b
    WHERE EXISTS (SELECT FROM outbox.hold)
      AND NOT EXISTS (SELECT FROM outbox.hold h WHERE h.lane = b.lane AND h.topic = b.topic AND h.unit = b.unit)
      AND NOT EXISTS (SELECT FROM outbox.hold h
                      WHERE h.lane = b.lane AND h.topic = b.topic AND (h.unit = '' OR h.partition IS NOT NULL))
    GROUP BY b.topic
), named AS (
    SELECT t.*,
           CASE WHEN EXISTS (SELECT FROM outbox.pause WHERE topic IS NULL) THEN NULL
                WHEN EXISTS (SELECT FROM outbox.hold) THEN (SELECT u.oldest FROM unheld u WHERE u.topic = t.topic)
                ELSE t.oldest END AS oldest_unheld,
           t.topic = ANY ($2::text[]) OR row_number() OVER (ORDER BY t.topic = ANY ($2::text[]), t.pending + t.dead DESC) <= 50 AS is_named
    FROM topics t
), listed AS (
    SELECT CASE WHEN n.is_named THEN n.topic END AS topic, round(sum(n.pending))::bigint AS pending, sum(n.dead)::bigint AS dead,
           coalesce(extract(epoch FROM clock_timestamp() - min(n.oldest)), 0)::float8 AS oldest_seconds,
           coalesce(extract(epoch FROM clock_timestamp() - min(n.oldest_unheld)), 0)::float8 AS oldest_unheld_seconds
    FROM named n GROUP BY 1
)
SELECT coalesce((SELECT round(sum(pending))::bigint FROM topics), 0) AS pending,
       EXISTS (SELECT FROM between_ends) OR (SELECT count(*) FROM due) >= $1 AS estimated,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(oldest)) FROM topics), 0)::float8 AS oldest_seconds,
       coalesce((SELECT sum(dead)::bigint FROM topics), 0) AS dead,
       coalesce((SELECT json_agg(l ORDER BY l.pending + l.dead DESC, l.topic) FROM listed l), '[]')::text AS topics,
       (SELECT count(*) FROM (SELECT FROM outbox.message WHERE available_at > statement_timestamp()
                              ORDER BY available_at LIMIT $1) d) AS delayed,
       (SELECT count(*) FROM outbox.hold h WHERE h.unit <> '' AND h.partition IS NULL AND {not_paused}) AS held_keys,
       (SELECT count(DISTINCT h.topic) FROM outbox.hold h WHERE h.unit = '' AND {not_paused}) AS parked_topics,
       (SELECT count(*) FROM (SELECT DISTINCT h.topic, h.partition FROM outbox.hold h WHERE h.partition IS NOT NULL AND {not_paused}) p) AS paused_partitions,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(p.at)) FROM outbox.pause p), 0)::float8 AS oldest_pause_seconds,
       (SELECT coalesce(max(age(backend_xmin)), 0)::bigint FROM pg_stat_activity WHERE backend_xmin IS NOT NULL) AS horizon_age,
       coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.message'::regclass), 0) AS dead_tuples
