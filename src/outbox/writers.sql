-- Who may still commit an id already drawn. A prepared transaction has no pid, hence IS DISTINCT FROM.
-- One row, always: an empty answer of another incarnation must not read as "nobody writes".
SELECT (SELECT incarnation FROM outbox.server) = $1 AS same_server, ARRAY(
    SELECT DISTINCT virtualtransaction
    FROM pg_locks
    WHERE locktype = 'relation' AND relation = 'outbox.message'::regclass
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND mode = 'RowExclusiveLock' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
) AS writers
