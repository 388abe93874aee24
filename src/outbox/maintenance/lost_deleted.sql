-- Returns which of these rows the server has lost, where published rows are deleted. Then the only proof is that an id has yet to
-- be drawn, or belongs to another message now.
SELECT sent.id
FROM unnest($1::bigint[], $2::uuid[]) AS sent (id, message_id)
WHERE sent.id > (SELECT last_value FROM outbox.message_id_seq)
   OR EXISTS (SELECT FROM outbox.message m WHERE m.id = sent.id AND m.message_id <> sent.message_id)
ORDER BY sent.id
