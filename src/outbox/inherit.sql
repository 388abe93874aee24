-- What the new owner of lanes must know of what was written for them. Run behind take.sql, in its transaction: the take may have waited
-- for a lock with an older snapshot, while an owner that had expired was still writing. Now that the lanes are locked, nobody is.
SELECT l.lane, ARRAY(SELECT DISTINCT h.topic FROM outbox.hold h WHERE h.lane = l.lane) AS held_topics
FROM outbox.lane l
WHERE l.lane = ANY ($1::smallint[])
