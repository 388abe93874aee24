-- Returns the privileges that the daemon needs and lacks, so that it fails at start-up and not at 3 a.m.
SELECT wanted.what
FROM (
    SELECT t.privilege || ' on outbox.' || t.name, has_table_privilege('outbox.' || t.name, t.privilege)
    FROM (VALUES ('message', 'SELECT'), ('message', 'DELETE'), ('lane', 'SELECT'), ('lane', 'UPDATE'), ('server', 'SELECT'), ('lineage', 'SELECT'), ('compatibility', 'SELECT'),
                 ('worker', 'SELECT'), ('worker', 'INSERT'), ('worker', 'UPDATE'), ('worker', 'DELETE'),
                 ('claim', 'SELECT'), ('claim', 'INSERT'), ('claim', 'UPDATE'), ('claim', 'DELETE'),
                 ('in_flight', 'SELECT'), ('in_flight', 'INSERT'), ('in_flight', 'DELETE'),
                 ('hold', 'SELECT'), ('hold', 'INSERT'), ('hold', 'UPDATE'), ('hold', 'DELETE'),
                 ('history', 'SELECT'), ('history', 'INSERT'), ('pause', 'SELECT'), ('pause_version', 'SELECT'), ('consumer_counters', 'SELECT'),
                 ('consumer_duplicate_counters', 'SELECT'),
                 ('idempotency_counters', 'SELECT'), ('idempotency_durations', 'SELECT'), ('inbox_finished', 'SELECT')) AS t (name, privilege)
    UNION ALL
    SELECT 'UPDATE (' || c.name || ') on outbox.message', has_column_privilege('outbox.message', c.name, 'UPDATE')
    FROM (VALUES ('available_at'), ('published_at'), ('dead_at'), ('attempts'), ('last_error')) AS c (name)
    UNION ALL
    SELECT 'SELECT (' || c.name || ') on outbox.' || c.tab, has_column_privilege('outbox.' || c.tab, c.name, 'SELECT')
    FROM (VALUES ('inbox_message', 'consumer'), ('inbox_message', 'priority'), ('inbox_message', 'next_attempt_at'),
                 ('inbox_message', 'done_at'), ('inbox_message', 'poison_at'), ('inbox_message', 'behind'),
                 ('inbox_message', 'received_at'),
                 ('processed_message', 'processed_at'),
                 ('idempotency_request', 'scope'), ('idempotency_request', 'status'), ('idempotency_request', 'locked_until'),
                 ('idempotency_request', 'failure_code'), ('idempotency_request', 'updated_at'),
                 ('idempotency_request', 'completed_at'), ('idempotency_request', 'expires_at')) AS c (tab, name)
    UNION ALL
    SELECT 'SELECT on sequence outbox.message_id_seq', has_sequence_privilege('outbox.message_id_seq', 'SELECT')
    UNION ALL
    SELECT 'EXECUTE on outbox.' || f.name, has_function_privilege('outbox.' || f.name, 'EXECUTE')
    FROM (VALUES ('history_prepare(integer)'), ('history_expire(interval)'), ('timeline()'),
                 ('murmur2(text)'), ('holds_of(smallint, text, text, integer, uuid)'),
                 ('purge_message(interval, bigint, integer)'), ('purge_processed(interval, integer)'),
                 ('purge_inbox(interval, integer)'), ('purge_idempotency(integer)'),
                 ('limit_bytes(text, integer)'), ('limit_bytes(bytea, integer)'), ('limit_bytes(jsonb, integer)'),
                 ('render_or_null(jsonb, integer)'), ('read_or_null(bytea)'), ('message_size(bigint)'),
                 ('idempotency_end_orphaned(interval, integer)')) AS f (name)
) AS wanted (what, granted)
WHERE NOT wanted.granted
