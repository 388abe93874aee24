-- Counts what a purge would remove now. Scans the outbox, and the old ends of three indexes.
SELECT (SELECT count(*) FROM outbox.message WHERE published_at < statement_timestamp() - $1 * interval '1 second') AS message,
       (SELECT count(*) FROM outbox.processed_message
        WHERE processed_at < statement_timestamp() - $2 * interval '1 second') AS processed_message,
       (SELECT count(*) FROM outbox.inbox_message WHERE done_at < statement_timestamp() - $3 * interval '1 second') AS inbox_message,
       (SELECT count(*) FROM outbox.idempotency_request
        WHERE expires_at < statement_timestamp() AND completed_at < statement_timestamp() - interval '1 hour') AS idempotency_request,
       -- The same rule as in outbox.history_expire.
       (SELECT count(*)::integer FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'outbox.history'::regclass AND c.relname ~ '^history_\d{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (now() - $1 * interval '1 second') AT TIME ZONE 'UTC') AS dropped, 0 AS locked
