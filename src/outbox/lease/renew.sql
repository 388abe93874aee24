-- Renews our lease and answers who is here and how many lanes each holds: the input of the sharing rule. No answer: not renewed.
-- Beside each the same: the floor of the unordered rows, which any other worker may have lowered. Not whether topics are parked
-- there: a lease must not wait for the table of holds.
-- Touches a live row only: a worker that expired, or was stamped stopped, is never revived.
WITH renewed AS (
    UPDATE outbox.worker
    SET lease_until = clock_timestamp() + $2 * interval '1 second', in_flight_from = $4
    WHERE id = $1 AND stopped_at IS NULL AND lease_until > clock_timestamp()
      AND (SELECT incarnation FROM outbox.server) = $3
    RETURNING id
)
SELECT w.id, extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_left,
       (SELECT count(*) FROM outbox.lane l WHERE l.owner = w.id) AS lanes, clock_timestamp() AS now,
       k.floor, k.epoch
FROM outbox.worker w JOIN outbox.lane k ON k.lane = -1
WHERE w.stopped_at IS NULL AND EXISTS (SELECT FROM renewed)
