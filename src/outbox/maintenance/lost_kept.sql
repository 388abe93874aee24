-- Which of these published rows are gone? Rows that are kept or archived are somewhere. The history has no index: it is read
-- once, and no further back than what is asked for.
SELECT sent.id
FROM unnest($1::bigint[], $2::uuid[]) AS sent (id, message_id)
WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.message_id = sent.message_id)
  AND sent.message_id NOT IN (SELECT h.message_id FROM outbox.history h
                              WHERE h.published_at > statement_timestamp() - interval '1 hour')
ORDER BY sent.id
