-- Returns the login of this session, and whether it is an operator's. Without the schema there may be no such role.
SELECT current_user::text, coalesce((SELECT pg_has_role(r.oid, 'USAGE') FROM pg_roles r WHERE r.rolname = 'outbox_operator'), false)
