-- The first statement of a release of unordered rows. Locks all holds of the topic in one order, so that two releases do not
-- deadlock. Returns where the released hold resumes, read under the lock: another release may have lowered it.
WITH locked AS MATERIALIZED (
    SELECT h.unit, h.resume_floor FROM outbox.hold h
    WHERE h.lane = -1 AND h.topic = $1
    ORDER BY h.unit COLLATE "C" FOR UPDATE
)
SELECT resume_floor FROM locked WHERE unit = $2
