-- Commands that have not succeeded, by operation and state: the $2 operations with the most of them by name, the rest together.
-- At most $1 are looked at. The tenant of a scope is left out: it is not for a label.
WITH unfinished AS MATERIALIZED (
    SELECT substr(r.scope, strpos(r.scope, '/') + 1) AS operation,
           CASE WHEN r.status = 'failed_retryable' THEN 'retryable'
                WHEN r.status = 'failed_final' THEN 'final'
                WHEN r.locked_until > clock_timestamp() THEN 'active'
                ELSE 'stale' END AS state
    FROM outbox.idempotency_request r
    WHERE r.status <> 'succeeded'
    -- Ordered, so that the index of what has not succeeded is used, with or without statistics.
    ORDER BY r.status, r.locked_until LIMIT $1
), busiest AS (
    SELECT operation FROM unfinished GROUP BY operation ORDER BY count(*) DESC, operation LIMIT $2
)
SELECT coalesce(b.operation, 'other') AS operation, u.state, count(*) AS commands
FROM unfinished u LEFT JOIN busiest b USING (operation)
GROUP BY 1, 2
