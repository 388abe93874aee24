-- Ends a term of this process, and inserts again what it had in flight ($2 to $4) and has not written the outcome of: a crash of
-- the server may have lost those entries. After this they are complete.
WITH stopped AS (
    UPDATE outbox.worker
    SET stopped_at = coalesce(stopped_at, clock_timestamp()), incarnation = (SELECT incarnation FROM outbox.server), in_flight_from = 0
    WHERE id = $1
    RETURNING id
)
INSERT INTO outbox.in_flight (worker, lanes, first_ids, last_ids)
SELECT id, $2::smallint[], $3::bigint[], $4::bigint[] FROM stopped
WHERE cardinality($2::smallint[]) > 0
