-- Returns which of these published rows the server has lost, where they are kept or archived. The history has no index,
-- so it is scanned once, and only its last hour.
SELECT sent.id
FROM unnest($1::bigint[], $2::uuid[]) AS sent (id, message_id)
WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.message_id = sent.message_id)
  AND sent.message_id NOT IN (SELECT h.message_id FROM outbox.history h
                              WHERE h.published_at > statement_timestamp() - interval '1 hour')
ORDER BY sent.id
