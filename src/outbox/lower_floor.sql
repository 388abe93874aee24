-- The first statement of a release: lowering the stored floor, marking the head and deleting the hold are one
-- transaction. It is the fence too, since it locks the lane as its owner.
UPDATE outbox.lane SET floor = least(floor, $4)
WHERE lane = $1 AND epoch = $2 AND owner = $3 AND pg_postmaster_start_time() = $5
