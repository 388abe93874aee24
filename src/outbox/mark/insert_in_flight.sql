-- Records what is about to be sent of these lanes ($4 to $6: ranges of ids), for the worker that takes them if this one dies. It
-- also fences the claim: nothing is inserted, and so nothing is sent, unless the lease is live and the lanes belong to this
-- worker by owner and epoch ($2, $3). The lanes are read without a lock. If another worker takes them between this and the send,
-- one batch may be sent twice, and the mark is fenced as always.
-- The commit does not wait for the disk, so a crash of the server may lose the entry. If this process survives the crash, it
-- inserts the entry again (stop_worker_in_flight.sql). If not, every row may have been sent (read_taken_lanes.sql).
INSERT INTO outbox.in_flight (worker, lanes, first_ids, last_ids)
SELECT $1, $4::smallint[], $5::bigint[], $6::bigint[]
WHERE set_config('synchronous_commit', 'off', true) = 'off'
  AND (SELECT incarnation FROM outbox.server) = $7
  AND EXISTS (SELECT FROM outbox.worker w WHERE w.id = $1 AND w.stopped_at IS NULL AND w.lease_until > clock_timestamp())
  AND (SELECT count(*) FROM outbox.lane l
       WHERE l.lane = ANY ($2::smallint[]) AND l.epoch = ($3::bigint[])[array_position($2::smallint[], l.lane)]
         AND l.owner = $1) = cardinality($2::smallint[])
RETURNING id
