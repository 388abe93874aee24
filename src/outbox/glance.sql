-- A look (look.sql) in passing, at half the price, for who knows of no holds: what is due is not asked for, nor who has claimed the
-- rows without a lane. Walks at most $3 rows above $1, takes along those of the lanes $2, no more than $4, and says whether all ids
-- above $6 up to $7 are here. At least one row, but on another server than the term began on ($5).
WITH seen AS MATERIALIZED (
    SELECT array_agg(f.id) FILTER (WHERE f.free AND f.lane IS NOT NULL) AS ids,
           min(f.id) FILTER (WHERE f.free AND f.lane IS NULL) AS lowest_keyless,
           max(f.id) AS highest,
           count(*) FILTER (WHERE f.id > $6 AND f.id <= $7) = $7 - $6 AS gapless,
           count(*) >= $3 OR count(*) FILTER (WHERE f.free AND f.lane IS NOT NULL) > $4 AS cut
    FROM (
        SELECT m.id, m.lane,
               m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AND (m.lane = ANY ($2) OR m.lane IS NULL) AS free
        FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $3
    ) f
)
SELECT m.id, m.lane, m.message_id, m.topic, m.key, m.partition,
       outbox.limit_bytes(m.payload, 6291456), outbox.limit_bytes(m.payload_bytes, 6291456), outbox.limit_bytes(m.headers, 6291456),
       outbox.limit_bytes(m.event_type, 6291456), outbox.limit_bytes(m.aggregate_type, 6291456), outbox.limit_bytes(m.aggregate_id, 6291456),
       m.aggregate_version, m.attempts, m.created_at,
       num_nonnulls(m.payload, m.payload_bytes, m.headers, m.event_type, m.aggregate_type, m.aggregate_id) AS parts,
       false AS delayed, false AS keyless, seen.cut, seen.lowest_keyless, seen.highest, seen.gapless
FROM seen LEFT JOIN outbox.message m
  -- By an array of ids, not by a join: a join may walk the whole table.
  ON m.id = ANY ((SELECT ids FROM seen WHERE NOT cut)::bigint[])
WHERE (SELECT incarnation FROM outbox.server) = $5
