-- What is about to be sent of these lanes ($4 to $6: ranges of ids), for the worker that takes them over should this one die. It is the fence
-- of a claim, too: nothing is inserted, and nothing is sent, unless the lease lasts and the lanes are this worker's by owner and epoch
-- ($2, $3). It reads them without a lock: what is taken over between this and the send is one batch, and the mark is fenced as always.
-- The commit does not wait for the disk. What a crash of the server loses of these rows, a process that lives writes down again
-- (stop_worker_in_flight.sql); of a process that does not, everything may have been sent (read_taken_lanes.sql).
INSERT INTO outbox.in_flight (worker, lanes, first_ids, last_ids)
SELECT $1, $4::smallint[], $5::bigint[], $6::bigint[]
WHERE set_config('synchronous_commit', 'off', true) = 'off'
  AND (SELECT incarnation FROM outbox.server) = $7
  AND EXISTS (SELECT FROM outbox.worker w WHERE w.id = $1 AND w.stopped_at IS NULL AND w.lease_until > clock_timestamp())
  AND (SELECT count(*) FROM outbox.lane l
       WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
         AND l.owner = $1) = cardinality($2::smallint[])
RETURNING id
