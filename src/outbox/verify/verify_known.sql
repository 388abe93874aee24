-- Returns which of these messages have a row now.
SELECT message_id FROM outbox.message WHERE message_id = ANY ($1)
UNION ALL
SELECT message_id FROM outbox.history WHERE message_id = ANY ($1)
