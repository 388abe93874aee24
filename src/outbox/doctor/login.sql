-- What the login of this session is, and what it may do beyond the grants of its roles. The table is searched for by its name,
-- because to_regclass fails for a login that may not use the schema.
SELECT r.rolsuper AS is_superuser,
       coalesce(pg_has_role(m.relowner, 'USAGE'), false) AND NOT r.rolsuper AS is_owner,
       coalesce(row_security_active(m.oid), false) AS is_filtered,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all_sessions
FROM pg_roles r
     LEFT JOIN pg_namespace n ON n.nspname = $1
     LEFT JOIN pg_class m ON m.relnamespace = n.oid AND m.relname = 'message'
WHERE r.rolname = current_user
