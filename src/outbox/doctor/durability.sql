-- What a crash of the server may cost: its settings, and the logins of this database that commit asynchronously by a setting of
-- their own.
SELECT current_setting('fsync')::boolean AS fsync, current_setting('full_page_writes')::boolean AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       ARRAY(SELECT r.rolname::text
             FROM pg_db_role_setting s JOIN pg_roles r ON r.oid = s.setrole
             WHERE (s.setdatabase = 0 OR s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
               AND 'synchronous_commit=off' = ANY (s.setconfig)
             ORDER BY 1) AS asynchronous_logins
