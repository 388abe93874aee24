-- Groups the inbox messages that were finished since $1 by consumer ($2; NULL for all others), outcome and bucket of their duration
-- ($3), and returns until when. It reads the first $4 of those that are done, and as many poison ones. A message may be finished a
-- while before its transaction commits, so the last five seconds are left to the next sample.
WITH done AS MATERIALIZED (
    SELECT f.consumer, f.outcome, f.finished_at, f.took
    FROM outbox.inbox_finished f
    WHERE f.finished_at > $1 AND f.finished_at <= statement_timestamp() - interval '5 seconds'
    ORDER BY f.finished_at LIMIT $4
), span AS MATERIALIZED (
    SELECT count(*) >= $4 AS is_full,
           CASE WHEN count(*) >= $4 THEN max(d.finished_at) ELSE statement_timestamp() - interval '5 seconds' END AS until
    FROM done d
), finished AS (
    SELECT d.consumer, d.outcome, d.took FROM done d
    UNION ALL
    SELECT p.consumer, 'poison', p.poison_at - p.received_at
    FROM (SELECT consumer, poison_at, received_at FROM outbox.inbox_message WHERE poison_at IS NOT NULL
          ORDER BY consumer, poison_at LIMIT $4) p
    WHERE p.poison_at > $1 AND p.poison_at <= (SELECT until FROM span)
), grouped AS (
    SELECT CASE WHEN f.consumer = ANY ($2::text[]) THEN f.consumer END AS consumer, f.outcome, count(*) AS count,
           sum(date_part('epoch', f.took)) AS seconds
    FROM finished f
    GROUP BY 1, f.outcome, width_bucket(date_part('epoch', f.took), $3::float8[])
)
SELECT s.until, s.is_full, coalesce((SELECT json_agg(g) FROM grouped g), '[]')::text AS groups
FROM span s
