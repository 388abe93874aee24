-- Counts commands that have not succeeded, by operation and state. The $2 operations with the most of them are named, and the
-- others are counted together. Reads at most $1 rows of each kind in the order of an index, so that the index is used with or
-- without statistics. The tenant in a scope is left out, since it does not belong in a label.
WITH unfinished AS MATERIALIZED (
    (SELECT r.scope, CASE WHEN r.locked_until > clock_timestamp() THEN 'active' ELSE 'stale' END AS state
     FROM outbox.idempotency_request r
     WHERE r.locked_until IS NOT NULL ORDER BY r.locked_until LIMIT $1)
    UNION ALL
    (SELECT r.scope, CASE WHEN r.status = 'failed_final' THEN 'final'
                          WHEN r.expires_at <= clock_timestamp() THEN 'expired' ELSE 'retryable' END
     FROM outbox.idempotency_request r
     WHERE r.failure_code IS NOT NULL AND r.locked_until IS NULL ORDER BY r.locked_until DESC, r.updated_at DESC LIMIT $1)
), named AS (
    SELECT substr(scope, strpos(scope, '/') + 1) AS operation, state FROM unfinished
), busiest AS (
    SELECT operation FROM named GROUP BY operation ORDER BY count(*) DESC, operation LIMIT $2
)
SELECT coalesce(b.operation, 'other') AS operation, n.state, count(*) AS count
FROM named n LEFT JOIN busiest b USING (operation)
GROUP BY 1, 2
