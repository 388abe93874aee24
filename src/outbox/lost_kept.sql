-- Which of these published rows are gone? Rows that are kept or archived are somewhere.
SELECT sent.id
FROM unnest($1::bigint[], $2::uuid[]) AS sent (id, message_id)
WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.message_id = sent.message_id)
  AND NOT EXISTS (SELECT FROM outbox.history h
                  WHERE h.message_id = sent.message_id AND h.published_at > clock_timestamp() - interval '1 hour')
ORDER BY sent.id
