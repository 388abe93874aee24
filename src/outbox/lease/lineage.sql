-- The first statement of a term. Where the server has lost writes since the lanes were last used, any of its rows may have been
-- sent, and the lost writes may include the lease of some worker. The first worker that notices stores this for all lanes.
WITH current AS MATERIALIZED (
    SELECT name FROM outbox.lineage WHERE incarnation = $1
), outdated AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lineage IS DISTINCT FROM (SELECT name FROM current) AND EXISTS (SELECT FROM current)
    ORDER BY l.lane FOR NO KEY UPDATE
), updated AS (
    UPDATE outbox.lane l
    SET lineage = (SELECT name FROM current), lineage_since = clock_timestamp(),
        maybe_sent_until = (SELECT last_value FROM outbox.message_id_seq)
    WHERE l.lane IN (SELECT lane FROM outdated)
)
SELECT name FROM current
