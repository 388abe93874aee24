-- Stores the floor of the unordered rows. Lane -1 has no owner, so its epoch guards the write. It rises whenever the floor is
-- lowered.
UPDATE outbox.lane SET floor = $1
WHERE lane = -1 AND epoch = $2 AND floor < $1 AND (SELECT incarnation FROM outbox.server) = $3
