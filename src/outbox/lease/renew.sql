-- Renews the lease of this worker, and returns all live workers with the number of lanes that each owns: the input of the fair
-- share. Each row also carries the floor of the unordered rows, which any other worker may have lowered, and the version of the
-- pauses. Returns no row if the lease was not renewed. Holds are not read here, because a lease must not wait for their table.
-- Also notes the version of the pauses ($5) that everything obeys which this worker sends.
-- Only a live row is updated: a worker that expired, or was stamped stopped, is never revived.
WITH renewed AS (
    UPDATE outbox.worker
    SET lease_until = clock_timestamp() + $2 * interval '1 second', renewed_at = clock_timestamp(), in_flight_from = $4, pauses_seen = $5
    WHERE id = $1 AND stopped_at IS NULL AND lease_until > clock_timestamp()
      AND (SELECT incarnation FROM outbox.server) = $3
    RETURNING id
)
SELECT w.id, extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_left,
       (SELECT count(*) FROM outbox.lane l WHERE l.owner = w.id) AS lanes, clock_timestamp() AS now,
       unordered.floor, unordered.epoch, (SELECT version FROM outbox.pause_version) AS pauses
FROM outbox.worker w JOIN outbox.lane unordered ON unordered.lane = -1
WHERE w.stopped_at IS NULL AND EXISTS (SELECT FROM renewed)
