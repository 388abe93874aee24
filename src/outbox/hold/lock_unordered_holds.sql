-- The first statement of a release without a lane: locks all holds of the topic, in order, so that two who release some of them do not
-- wait for each other in a circle. Answers where the one that goes resumes: another that went may have left it rows further down.
WITH held AS MATERIALIZED (
    SELECT h.unit, h.resume_floor FROM outbox.hold h
    WHERE h.lane = -1 AND h.topic = $1
    ORDER BY h.unit COLLATE "C" FOR UPDATE
)
SELECT resume_floor FROM held WHERE unit = $2
