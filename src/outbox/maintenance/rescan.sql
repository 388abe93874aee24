-- Finds lost rows: pending and not held, but at or below a stored floor. There must be none. Those found become delayed rows that
-- are due, and so are published all the same.
WITH chunk AS MATERIALIZED (
    SELECT m.id, m.lane, m.topic, m.key, m.partition, m.message_id,
           m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL AS pending
    FROM outbox.message m WHERE m.id > $1 ORDER BY m.id LIMIT $2
), lost AS MATERIALIZED (
    SELECT c.id
    FROM chunk c JOIN outbox.lane l ON l.lane = coalesce(c.lane, -1)
    WHERE c.pending AND c.id <= l.floor
      AND NOT EXISTS (SELECT FROM outbox.holds_of(l.lane, c.topic, c.key, c.partition, c.message_id))
), found AS (
    -- By an array of ids, not by a join: a join may scan the whole table.
    UPDATE outbox.message m SET available_at = clock_timestamp()
    WHERE m.id = ANY (ARRAY(SELECT id FROM lost)) AND m.published_at IS NULL AND m.dead_at IS NULL
    RETURNING m.id
)
SELECT max(id) AS reached, (SELECT count(*) FROM found) AS found FROM chunk
