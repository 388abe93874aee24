-- Behind insert_holds.sql, for what is held without a lane: another process may have lowered the floor since we read it, and then knows of
-- more. A statement of its own, since insert_holds.sql may have waited for the very release that did, with a snapshot from before. Only what
-- insert_holds.sql has locked is touched: whoever releases a hold locks all of its topic in the order of their units.
UPDATE outbox.hold h SET resume_floor = l.floor
FROM outbox.lane l, unnest($1::text[], $2::text[]) AS held (topic, unit)
WHERE l.lane = -1 AND h.lane = -1 AND h.topic = held.topic AND h.unit = held.unit AND l.floor < h.resume_floor
