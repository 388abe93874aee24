-- Behind hold.sql, for topics held without a lane: another process may have lowered the floor since we read it, and then knows of
-- more. A statement of its own, since hold.sql may have waited for the very release that did, with a snapshot from before.
UPDATE outbox.hold h SET resume_floor = l.floor
FROM outbox.lane l
WHERE l.lane = -1 AND h.lane = -1 AND h.topic = ANY ($1) AND l.floor < h.resume_floor
