-- Who may still commit an id already drawn. A prepared transaction has no pid, hence IS DISTINCT FROM.
SELECT DISTINCT virtualtransaction AS writer
FROM pg_locks
WHERE locktype = 'relation' AND relation = 'outbox.message'::regclass
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode = 'RowExclusiveLock' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
