-- Returns the transactions that may still commit an id already drawn, each with its transaction id once it has one. A prepared
-- transaction has no pid, hence IS DISTINCT FROM. A transaction with savepoints has several ids, and commits under the lowest.
-- pg_locks shows only the lower half of an id; the upper half is taken from the next id that PostgreSQL will assign.
-- Also returns how the sequence draws ids now, after the highest one was read (highest_id.sql). If it has no cache now, no
-- session has cached ids from before.
-- Always returns one row: no row on another incarnation must not be mistaken for no open writers.
SELECT (SELECT incarnation FROM outbox.server) = $1 AS same_server,
       coalesce(array_agg(w.writer), '{}') AS writers, coalesce(array_agg(w.id), '{}') AS ids,
       (SELECT s.seqcache FROM pg_sequence s WHERE s.seqrelid = 'outbox.message_id_seq'::regclass) AS cache,
       (SELECT s.seqincrement FROM pg_sequence s WHERE s.seqrelid = 'outbox.message_id_seq'::regclass) AS increment,
       pg_relation_filenode('outbox.message_id_seq'::regclass)::bigint AS file
FROM (
    SELECT l.virtualtransaction AS writer,
           min(next.id + ((l.transactionid::text::bigint - next.id + 2147483648) & 4294967295) - 2147483648)
               FILTER (WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock') AS id
    FROM pg_locks l, (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS id) AS next
    WHERE l.locktype IN ('relation', 'transactionid') AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
    GROUP BY l.virtualtransaction
    HAVING bool_or(l.locktype = 'relation' AND l.relation = 'outbox.message'::regclass AND l.mode = 'RowExclusiveLock'
                   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
) AS w
