-- Returns held keys of the lanes that this worker owns: first those that are due, in turn from each topic, so that a topic with
-- thousands of them does not keep the others from being read; then those that are due next. Holds of paused topics ($4) and of
-- paused keys ($5, $6) are left out.
SELECT h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, h.wait
FROM (
    SELECT h.*, least(extract(epoch FROM h.retry_at - clock_timestamp()), 3600)::float8 AS wait,
           row_number() OVER (PARTITION BY h.topic ORDER BY h.retry_at) AS place
    FROM outbox.hold h JOIN outbox.lane l ON l.lane = h.lane
    WHERE l.owner = $1 AND h.unit <> '' AND h.partition IS NULL AND h.retry_at < 'infinity'
      AND h.topic <> ALL ($4::text[]) AND (h.topic, h.unit) NOT IN (SELECT * FROM unnest($5::text[], $6::text[]))
      AND (SELECT incarnation FROM outbox.server) = $2
) h
ORDER BY CASE WHEN h.wait <= 0 THEN h.place END NULLS LAST, h.wait LIMIT $3
