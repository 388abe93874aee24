-- How many sessions the server, this database and this login may have (NULL: any number), and how many there are. Sessions
-- without a database are not counted among them.
SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
       - coalesce(current_setting('reserved_connections', true), '0')::bigint AS server_max,
       count(*) AS server_used,
       nullif(d.datconnlimit, -1)::bigint AS database_max, count(*) FILTER (WHERE a.datid = d.oid) AS database_used,
       nullif(r.rolconnlimit, -1)::bigint AS login_max, count(*) FILTER (WHERE a.usesysid = r.oid) AS login_used
FROM pg_database d, pg_roles r, pg_stat_activity a
WHERE d.datname = current_database() AND r.rolname = session_user AND a.datid IS NOT NULL
GROUP BY d.datconnlimit, r.rolconnlimit
