-- Lists holds that match the filter, those of one key, partition or topic together, the oldest first. Empty arrays and NULL restrict
-- nothing; a key ($2) and a partition ($3) are alternatives. Holds of what is paused are listed only on request ($8).
SELECT h.topic, h.unit, count(*) AS holds, max(h.failures) AS failures, max(h.reason) AS error, min(h.head_id) AS head_id,
       extract(epoch FROM clock_timestamp() - min(h.held_at))::float8 AS age_seconds,
       CASE WHEN min(h.retry_at) < 'infinity'
            THEN greatest(extract(epoch FROM min(h.retry_at) - clock_timestamp()), 0)::float8 END AS retry_in_seconds
FROM outbox.hold h
WHERE (cardinality($1::text[]) = 0 OR h.topic = ANY ($1))
  AND (cardinality($2::text[]) = 0 AND cardinality($3::integer[]) = 0
       OR h.unit = ANY (ARRAY(SELECT 'k:' || k FROM unnest($2::text[]) AS k))
       OR h.unit = ANY (ARRAY(SELECT 'p:' || p FROM unnest($3::integer[]) AS p))
       OR h.partition = ANY ($3))
  AND ($4::text IS NULL OR strpos(lower(h.reason), lower($4)) > 0)
  AND ($5::float8 IS NULL OR h.held_at < statement_timestamp() - make_interval(secs => $5))
  AND ($6::float8 IS NULL OR h.held_at >= statement_timestamp() - make_interval(secs => $6))
  AND ($8 OR ({not_paused}))
GROUP BY h.topic, h.unit
ORDER BY age_seconds DESC, h.topic, h.unit LIMIT $7
