-- Registers a worker, with the newest schema version that its binary knows ($10). Returns the incarnation of the server, which all
-- its later statements are tied to, and the server's time.
INSERT INTO outbox.worker (id, name, version, lease_until, incarnation, pod_uid, machine, pid, process_started, session_key, knows, renewed_at)
SELECT $1, $2, $3, clock_timestamp() + $4 * interval '1 second', incarnation, $5, $6, $7, $8, $9, $10, clock_timestamp() FROM outbox.server
RETURNING incarnation, clock_timestamp() AS now
