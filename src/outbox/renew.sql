-- Touches a live row only: a worker that expired, or was stamped stopped, is never revived.
UPDATE outbox.worker
SET lease_until = clock_timestamp() + $2 * interval '1 second'
WHERE id = $1 AND stopped_at IS NULL AND lease_until > clock_timestamp()
  AND (SELECT incarnation FROM outbox.server) = $3
