-- Sessions of this database that have a transaction open and do nothing, those of the longest time first. What sessions of other
-- logins do, only a login with pg_read_all_stats sees.
SELECT a.pid, coalesce(a.usename, '')::text AS login, coalesce(a.application_name, '') AS application,
       extract(epoch FROM clock_timestamp() - a.state_change)::float8 AS seconds
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%' AND a.pid <> pg_backend_pid()
ORDER BY a.state_change LIMIT 10
