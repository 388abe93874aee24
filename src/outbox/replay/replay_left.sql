-- Counts what a replay has yet to take, by topic.
SELECT r.topic, count(*) AS messages, min(r.published_at) AS oldest, max(r.published_at) AS newest
FROM outbox.replay_row r
WHERE r.operation = $1
GROUP BY r.topic ORDER BY r.topic
