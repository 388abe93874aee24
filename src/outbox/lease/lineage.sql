-- The first statement of a term. Where the server has lost writes since the lanes were last used, any row it has may have been sent, and
-- some worker's lease may be among what was lost: the first worker that finds this out writes it down for all lanes.
WITH current AS MATERIALIZED (
    SELECT name FROM outbox.lineage WHERE incarnation = $1
), astray AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lineage IS DISTINCT FROM (SELECT name FROM current) AND EXISTS (SELECT FROM current)
    ORDER BY l.lane FOR NO KEY UPDATE
), told AS (
    UPDATE outbox.lane l
    SET lineage = (SELECT name FROM current), lineage_since = clock_timestamp(),
        maybe_sent_until = (SELECT last_value FROM outbox.message_id_seq)
    WHERE l.lane IN (SELECT lane FROM astray)
)
SELECT name FROM current
