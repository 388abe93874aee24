-- The first statement of a release: lowering the stored floor, marking the heads and deleting the holds are one
-- transaction. It is the fence too, since it locks the lane as its owner. The holds are read here, not when their heads were
-- sent: a key of the same topic may have been released meanwhile and have left it rows further down.
-- The raised epoch is for our own floors, read before this and still on their way to be stored: they would lead.
-- What follows waits for row locks no longer than a mark does.
UPDATE outbox.lane l
SET epoch = l.epoch + 1,
    floor = least(l.floor, (SELECT min(h.resume_floor)
                            FROM outbox.hold h
                            JOIN unnest($4::text[], $5::text[]) AS gone (topic, unit) ON h.topic = gone.topic AND h.unit = gone.unit
                            WHERE h.lane = l.lane))
WHERE l.lane = $1 AND l.epoch = $2 AND l.owner = $3 AND (SELECT incarnation FROM outbox.server) = $6
RETURNING l.epoch, l.floor, set_config('lock_timeout', '250ms', true)
