-- Returns the replay with this filter that the same login has begun, that is not finished, and that went on within the last day.
SELECT f.id AS operation, f.at AS began_at
FROM outbox.audit f
WHERE f.id = f.operation AND f.command = 'replay' AND f.login = session_user AND f.filter = $1::text::jsonb
  AND EXISTS (SELECT FROM outbox.replay_row r WHERE r.operation = f.id)
  AND (SELECT max(a.at) FROM outbox.audit a WHERE a.operation = f.id) > statement_timestamp() - interval '1 day'
ORDER BY f.id DESC LIMIT 1
