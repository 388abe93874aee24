-- Transactions of this database that are prepared and not ended, oldest first.
SELECT p.gid, p.owner::text AS owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8 AS seconds
FROM pg_prepared_xacts p
WHERE p.database = current_database()
ORDER BY p.prepared LIMIT 10
