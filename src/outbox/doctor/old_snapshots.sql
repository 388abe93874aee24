-- The snapshots that keep vacuum from removing rows of this database, oldest first: of sessions, of standbys (they have no
-- database), and of replication slots. Vacuum itself holds nothing back. When a transaction began, only a login with
-- pg_read_all_stats sees; how many transactions have begun since, every login does.
SELECT a.pid, NULL::text AS slot, coalesce(a.application_name, '') AS application, age(a.backend_xmin)::bigint AS transactions,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM pg_stat_activity a
WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.datid IS NULL)
  AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
  AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
UNION ALL
SELECT NULL, s.slot_name::text, '', age(s.xmin)::bigint, NULL
FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
ORDER BY transactions DESC LIMIT 10
