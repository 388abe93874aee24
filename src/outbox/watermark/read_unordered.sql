-- Returns the stored state of the unordered rows: their floor, its epoch, up to which id they may have been sent, and their
-- holds.
SELECT l.floor, l.epoch, l.maybe_sent_until, EXISTS (SELECT FROM outbox.hold h WHERE h.lane = -1) AS has_holds
FROM outbox.lane l
WHERE l.lane = -1 AND (SELECT incarnation FROM outbox.server) = $1
