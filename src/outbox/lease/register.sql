-- A new worker. Returns the server incarnation that everything it does later is tied to, and the time its records are stamped with.
INSERT INTO outbox.worker (id, name, version, lease_until, incarnation, pod_uid, machine, pid, process_started, session_key)
SELECT $1, $2, $3, clock_timestamp() + $4 * interval '1 second', incarnation, $5, $6, $7, $8, $9 FROM outbox.server
RETURNING incarnation, clock_timestamp() AS now
