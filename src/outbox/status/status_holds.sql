-- Holds of what is paused are left out: the pauses are listed by themselves, and say why nothing is tried.
SELECT h.topic, h.unit, count(*) AS lanes, max(h.failures) AS failures, max(h.reason) AS reason, min(h.head_id) AS head_id,
       extract(epoch FROM clock_timestamp() - min(h.held_at))::float8 AS age_seconds,
       CASE WHEN min(h.retry_at) < 'infinity' THEN greatest(extract(epoch FROM min(h.retry_at) - clock_timestamp()), 0)::float8 END AS retry_in_seconds
FROM outbox.hold h
WHERE {not_paused}
GROUP BY h.topic, h.unit
ORDER BY age_seconds DESC LIMIT $1
