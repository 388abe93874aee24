-- Returns the highest id drawn. Runs before open_writers.sql, because a transaction locks the table before it draws an id.
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id
FROM outbox.message_id_seq
WHERE (SELECT incarnation FROM outbox.server) = $1
