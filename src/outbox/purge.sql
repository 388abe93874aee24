-- One bounded step of retention, by id. Only what is published and old enough: never a pending or dead row.
WITH chunk AS MATERIALIZED (
    SELECT id, published_at, created_at FROM outbox.message WHERE id > $1 ORDER BY id LIMIT $2
), gone AS (
    -- By an array of ids, not by a join: a join may walk the whole table.
    DELETE FROM outbox.message m
    WHERE m.id = ANY (ARRAY(
        -- What somebody holds is left for the next pass: whoever waits keeps others waiting.
        SELECT o.id FROM outbox.message o
        WHERE o.id = ANY (ARRAY(SELECT id FROM chunk WHERE published_at < clock_timestamp() - $3 * interval '1 second'))
          AND o.published_at < clock_timestamp() - $3 * interval '1 second'
        FOR UPDATE SKIP LOCKED))
    RETURNING m.id
)
SELECT max(id) AS reached, (SELECT count(*) FROM gone) AS purged,
       -- Nothing below can be old enough either once every row of a chunk is this young.
       coalesce(min(created_at) > clock_timestamp() - $3 * interval '1 second', true) AS young
FROM chunk
