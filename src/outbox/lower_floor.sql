-- The first statement of a release: lowering the stored floor, marking the head and deleting the hold are one
-- transaction. It is the fence too, since it locks the lane as its owner. The hold is read here, not when its head was
-- sent: a key of the same topic may have been released meanwhile and have left it rows further down.
-- The raised epoch is for our own floors, read before this and still on their way to be stored: they would lead.
UPDATE outbox.lane l
SET epoch = l.epoch + 1,
    floor = least(l.floor, (SELECT h.resume_floor FROM outbox.hold h
                            WHERE h.lane = l.lane AND h.topic = $4 AND h.unit = $5))
WHERE l.lane = $1 AND l.epoch = $2 AND l.owner = $3 AND (SELECT incarnation FROM outbox.server) = $6
RETURNING l.epoch, l.floor
