-- The same where published rows are deleted: then only an id that is yet to be drawn, or that now is another's, is a proof.
SELECT sent.id
FROM unnest($1::bigint[], $2::uuid[]) AS sent (id, message_id)
WHERE sent.id > (SELECT last_value FROM outbox.message_id_seq)
   OR EXISTS (SELECT FROM outbox.message m WHERE m.id = sent.id AND m.message_id <> sent.message_id)
ORDER BY sent.id
