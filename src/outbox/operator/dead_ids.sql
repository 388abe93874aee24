-- Returns the ids of all dead letters that match the filter, by topic; with a limit, the lowest ids. Only these are changed, and none
-- that dies while an operator is asked. Read in the order of dead_at, for which only the index on it fits: the order of ids would
-- suggest the primary key, which is as long as the table.
WITH dead AS MATERIALIZED (
    SELECT m.topic, m.id FROM outbox.message m WHERE {dead_filter} ORDER BY m.dead_at
)
SELECT d.topic, array_agg(d.id ORDER BY d.id) AS ids
FROM (SELECT * FROM dead ORDER BY id LIMIT $8) AS d
GROUP BY d.topic ORDER BY d.topic
