-- Returns one hold of each topic and partition that accepts nothing, in lanes of this worker: the one that is due first. Topics
-- that an operator has paused ($4) are left out. First come those that are due, in turn from each topic, so that a topic with hundreds of paused partitions does not keep the others from
-- being probed; then those that are due next.
SELECT h.lane, h.topic, h.unit, h.head_id, h.resume_floor, h.failures, h.wait
FROM (
    SELECT h.*, row_number() OVER (PARTITION BY h.topic ORDER BY h.wait) AS place
    FROM (
        SELECT DISTINCT ON (h.topic, h.unit) h.*, least(extract(epoch FROM h.retry_at - clock_timestamp()), 3600)::float8 AS wait
        FROM outbox.hold h JOIN outbox.lane l ON l.lane = h.lane
        WHERE l.owner = $1 AND (h.unit = '' OR h.partition IS NOT NULL) AND h.retry_at < 'infinity'
          AND h.topic <> ALL ($4::text[])
          AND (SELECT incarnation FROM outbox.server) = $2
        ORDER BY h.topic, h.unit, h.retry_at
    ) h
) h
ORDER BY CASE WHEN h.wait <= 0 THEN h.place END NULLS LAST, h.wait LIMIT $3
