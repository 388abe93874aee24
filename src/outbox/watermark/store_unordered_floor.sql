-- Lane -1 has no owner: its epoch, raised whenever its floor is lowered, guards the write instead.
UPDATE outbox.lane SET floor = $1
WHERE lane = -1 AND epoch = $2 AND floor < $1 AND (SELECT incarnation FROM outbox.server) = $3
