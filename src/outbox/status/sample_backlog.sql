-- Samples the backlog for gauges. It starts at the stored floors and scans at most $1 rows of each part, so that it stays cheap.
-- Holds of what is paused are not counted.
WITH scanned AS MATERIALIZED (
    SELECT m.created_at, m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AS pending
    FROM outbox.message m
    WHERE m.id > (SELECT min(floor) FROM outbox.lane)
    ORDER BY m.id LIMIT $1
), passed AS MATERIALIZED (
    -- Unpublished rows that every floor has passed are held, and lie above the resume floor of their hold.
    SELECT m.created_at, m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AS pending
    FROM outbox.message m
    WHERE m.id > (SELECT min(resume_floor) FROM outbox.hold) AND m.id <= (SELECT min(floor) FROM outbox.lane)
    ORDER BY m.id LIMIT $1
)
SELECT count(*) FILTER (WHERE pending) AS pending,
       (SELECT count(*) FROM scanned) >= $1 OR (SELECT count(*) FROM passed) >= $1 AS capped,
       coalesce(extract(epoch FROM clock_timestamp() - min(created_at) FILTER (WHERE pending)), 0)::float8 AS oldest_seconds,
       -- Ordered so that only the index meant for it fits. Without statistics the planner would scan the whole table.
       (SELECT count(*) FROM (SELECT FROM outbox.message WHERE dead_at > '-infinity' ORDER BY dead_at LIMIT $1) d) AS dead,
       (SELECT count(*) FROM (SELECT FROM outbox.message WHERE available_at > statement_timestamp()
                              ORDER BY available_at LIMIT $1) d) AS delayed,
       (SELECT count(*) FROM outbox.hold h WHERE h.unit <> '' AND h.partition IS NULL AND {not_paused}) AS held_keys,
       (SELECT count(DISTINCT h.topic) FROM outbox.hold h WHERE h.unit = '' AND {not_paused}) AS parked_topics,
       (SELECT count(*) FROM (SELECT DISTINCT topic, partition FROM outbox.hold WHERE partition IS NOT NULL) p) AS paused_partitions,
       (SELECT coalesce(max(age(backend_xmin)), 0)::bigint FROM pg_stat_activity WHERE backend_xmin IS NOT NULL) AS horizon_age,
       coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'outbox.message'::regclass), 0) AS dead_tuples
FROM (SELECT * FROM scanned UNION ALL SELECT * FROM passed) AS backlog
