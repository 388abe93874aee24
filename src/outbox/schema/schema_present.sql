-- Is there an outbox schema, and can this server be written to? to_regclass returns NULL instead of an error if there is none.
SELECT to_regclass('outbox.schema_history') IS NOT NULL AS present,
       pg_is_in_recovery() AS read_only
