-- Lowers the floor of the unordered rows. The raised epoch tells every other process to read that floor again.
UPDATE outbox.lane SET floor = least(floor, $1), epoch = epoch + 1
WHERE lane = -1 AND (SELECT incarnation FROM outbox.server) = $2
