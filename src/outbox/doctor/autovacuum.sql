-- Is autovacuum on, for which tables of the outbox is it switched off, and what has it left of outbox.message?
SELECT current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean AS is_on,
       ARRAY(SELECT c.oid::regclass::text
             FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
             WHERE c.relnamespace = m.relnamespace
               AND EXISTS (SELECT FROM pg_options_to_table(c.reloptions || t.reloptions) o
                           WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)
             ORDER BY 1) AS switched_off,
       coalesce(s.n_dead_tup, 0)::bigint AS dead_rows, coalesce(s.n_live_tup, 0)::bigint AS live_rows
FROM pg_class m LEFT JOIN pg_stat_user_tables s ON s.relid = m.oid
WHERE m.oid = 'outbox.message'::regclass
