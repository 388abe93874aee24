-- The id sequence was restarted ($1), or a floor lies above every id drawn, and then it must have been: ids come again below the floors.
-- The floors are built anew from the start, and so are the resume floors of holds. The raised epoch rejects a floor that is still on its way
-- to be stored. A live worker keeps its epoch, under which it has rows in flight: it notices the restart by itself and begins anew.
WITH drawn AS MATERIALIZED (
    SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id FROM outbox.message_id_seq
), void AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.floor > 0 AND ($1 OR l.floor > (SELECT id FROM drawn)) AND (SELECT incarnation FROM outbox.server) = $2
    ORDER BY l.lane FOR NO KEY UPDATE
), held AS MATERIALIZED (
    SELECT h.lane, h.topic, h.unit FROM outbox.hold h
    WHERE h.resume_floor > 0 AND ($1 OR h.resume_floor > (SELECT id FROM drawn)) AND (SELECT incarnation FROM outbox.server) = $2
    ORDER BY h.lane, h.topic, h.unit FOR NO KEY UPDATE
), resumed AS (
    UPDATE outbox.hold h SET resume_floor = 0
    FROM held
    WHERE h.lane = held.lane AND h.topic = held.topic AND h.unit = held.unit
)
UPDATE outbox.lane l
SET floor = 0,
    epoch = l.epoch + CASE WHEN l.lane >= 0 AND l.owner IN (SELECT w.id FROM outbox.worker w WHERE w.stopped_at IS NULL) THEN 0 ELSE 1 END
FROM void
WHERE l.lane = void.lane
RETURNING l.lane
