-- Is there a partition of the history for today, does the default partition contain rows, and does any relay run, which would
-- have made the partition?
SELECT to_regclass('outbox.history_' || to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')) IS NOT NULL AS has_today,
       pg_relation_size('outbox.history_default') AS default_bytes,
       EXISTS (SELECT FROM outbox.worker w WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()) AS is_running
