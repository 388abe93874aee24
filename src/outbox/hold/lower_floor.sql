-- The first statement of a release, which lowers the stored floor, marks the heads and deletes the holds in one transaction. It
-- is also the fence, since it locks the lane by owner and epoch. The holds are read here and not when their heads were sent,
-- because the release of a key of the same topic may have lowered their resume floors.
-- The raised epoch rejects floors that this worker read earlier and is about to store: they would pass pending rows.
-- After this the transaction waits for row locks no longer than a mark does.
UPDATE outbox.lane l
SET epoch = l.epoch + 1,
    floor = least(l.floor, (SELECT min(h.resume_floor)
                            FROM outbox.hold h
                            JOIN unnest($4::text[], $5::text[]) AS released (topic, unit) ON h.topic = released.topic AND h.unit = released.unit
                            WHERE h.lane = l.lane))
WHERE l.lane = $1 AND l.epoch = $2 AND l.owner = $3 AND (SELECT incarnation FROM outbox.server) = $6
RETURNING l.epoch, l.floor, set_config('lock_timeout', '250ms', true)
