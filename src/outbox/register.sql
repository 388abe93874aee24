-- A new worker; its answer names the server incarnation that everything it later does is tied to, and the time its records
-- are stamped by.
INSERT INTO outbox.worker (id, name, version, lane_batch, lease_until, pod_uid, machine, pid, process_started, session_key)
VALUES ($1, $2, $3, $4, clock_timestamp() + $5 * interval '1 second', $6, $7, $8, $9, $10)
RETURNING (SELECT incarnation FROM outbox.server) AS incarnation, clock_timestamp() AS now
