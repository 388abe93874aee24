-- Runs after insert_holds.sql for holds of unordered rows. Another process may have lowered the floor since this one read it, and
-- then the holds must resume from the lower one. It is a statement of its own, because insert_holds.sql may have waited for the
-- very release that lowered the floor, with a snapshot from before. It touches only rows that insert_holds.sql has locked, since
-- a release locks all holds of a topic in the order of their units.
UPDATE outbox.hold h SET resume_floor = l.floor
FROM outbox.lane l, unnest($1::text[], $2::text[]) AS inserted (topic, unit)
WHERE l.lane = -1 AND h.lane = -1 AND h.topic = inserted.topic AND h.unit = inserted.unit AND l.floor < h.resume_floor
