-- Lists at most $4 operations, the newest first, with what their transactions changed in all. NULL and an empty array restrict nothing;
-- operations before $5 are older than it.
SELECT f.id AS operation, f.at AS began_at, f.login::text AS login, f.command, f.filter::text AS filter, f.reason, whole.changed,
       whole.topics, whole.transactions
FROM outbox.audit f
CROSS JOIN LATERAL (
    SELECT sum(a.changed)::bigint AS changed, count(*) AS transactions,
           ARRAY(SELECT DISTINCT t FROM outbox.audit o, unnest(o.topics) AS t WHERE o.operation = f.id ORDER BY t) AS topics
    FROM outbox.audit a WHERE a.operation = f.id
) AS whole
WHERE f.id = f.operation
  AND (cardinality($1::text[]) = 0 OR whole.topics && $1)
  AND ($2::text IS NULL OR f.login = $2)
  AND ($3::float8 IS NULL OR f.at >= statement_timestamp() - make_interval(secs => $3))
  AND ($5::bigint IS NULL OR f.id < $5)
ORDER BY f.id DESC LIMIT $4
