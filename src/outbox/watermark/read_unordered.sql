-- The stored floor of the unordered rows, its epoch, what may have been sent, and whether topics are parked there.
SELECT l.floor, l.epoch, l.maybe_sent_until, (SELECT count(*) FROM outbox.hold h WHERE h.lane = -1) AS holds
FROM outbox.lane l
WHERE l.lane = -1 AND (SELECT incarnation FROM outbox.server) = $1
