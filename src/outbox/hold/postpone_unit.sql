-- Postpones all holds of a topic and unit whose probe failed, in lanes of this worker and of unordered rows. A lock on the lanes
-- is the fence, as in a mark. Matching the owner is enough, since no other term has the same worker id.
WITH own AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.owner = $1 AND (SELECT incarnation FROM outbox.server) = $2
      AND l.lane IN (SELECT h.lane FROM outbox.hold h WHERE h.topic = $3 AND h.unit = $4)
    ORDER BY l.lane FOR SHARE
)
UPDATE outbox.hold h
SET failures = h.failures + 1, reason = $5, retry_at = clock_timestamp() + $6::float8 * interval '1 second'
WHERE h.topic = $3 AND h.unit = $4 AND h.retry_at < 'infinity'
  AND (h.lane IN (SELECT lane FROM own) OR (h.lane = -1 AND (SELECT incarnation FROM outbox.server) = $2))
