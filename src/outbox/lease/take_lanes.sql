-- Takes up to $2 lanes that no live worker owns. What their last owners left is read afterwards, in the same transaction: see
-- read_taken_lanes.sql.
-- The row of an expired worker is locked and stamped stopped first, so that it cannot renew its lease between the check and the
-- take. Locking reads the row again, so a renewal that has just committed is seen.
WITH me AS MATERIALIZED (
    SELECT id FROM outbox.worker
    WHERE id = $1 AND stopped_at IS NULL AND lease_until > clock_timestamp() AND (SELECT incarnation FROM outbox.server) = $3
    FOR SHARE
), expired AS MATERIALIZED (
    SELECT id FROM outbox.worker
    WHERE id <> $1 AND stopped_at IS NULL AND lease_until <= clock_timestamp()
    ORDER BY id FOR UPDATE SKIP LOCKED
), stamped AS (
    UPDATE outbox.worker SET stopped_at = clock_timestamp()
    WHERE id IN (SELECT id FROM expired)
    RETURNING id
), free AS MATERIALIZED (
    -- Plain IN, not a join: if a lane was taken after the snapshot, the recheck must see its new owner.
    SELECT l.lane, l.owner
    FROM outbox.lane l
    WHERE l.lane >= 0
      -- A failover may have lost leases that were granted before it. Wait until they have expired.
      AND l.lineage_since + $4 * interval '1 second' <= clock_timestamp()
      AND (l.owner IS NULL
           OR l.owner IN (SELECT id FROM outbox.worker WHERE stopped_at IS NOT NULL)
           OR l.owner IN (SELECT id FROM stamped))
    ORDER BY l.lane LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE outbox.lane l
SET owner = $1, epoch = l.epoch + 1
FROM free
WHERE l.lane = free.lane AND EXISTS (SELECT FROM me)
RETURNING l.lane, l.epoch, l.floor, l.maybe_sent_until,
          -- A lane that still names an owner was not returned. What that worker had in flight may have been sent.
          free.owner
