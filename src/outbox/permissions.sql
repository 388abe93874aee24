-- Everything the daemon will do, asked for at start-up rather than refused at 3 a.m.
SELECT wanted.what
FROM (VALUES
    ('SELECT on outbox.message',  has_table_privilege('outbox.message', 'SELECT')),
    ('DELETE on outbox.message',  has_table_privilege('outbox.message', 'DELETE')),
    ('UPDATE (published_at) on outbox.message', has_column_privilege('outbox.message', 'published_at', 'UPDATE')),
    ('SELECT on sequence outbox.message_id_seq', has_sequence_privilege('outbox.message_id_seq', 'SELECT')),
    ('UPDATE on outbox.lane',     has_table_privilege('outbox.lane', 'UPDATE')),
    ('INSERT on outbox.worker',   has_table_privilege('outbox.worker', 'INSERT')),
    ('INSERT on outbox.hold',     has_table_privilege('outbox.hold', 'INSERT')),
    ('INSERT on outbox.history',  has_table_privilege('outbox.history', 'INSERT'))
) AS wanted (what, granted)
WHERE NOT wanted.granted
