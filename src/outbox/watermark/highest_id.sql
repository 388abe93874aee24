-- The highest id drawn so far. Read before the writers are: a transaction locks the table before it draws.
SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id
FROM outbox.message_id_seq
WHERE (SELECT incarnation FROM outbox.server) = $1
