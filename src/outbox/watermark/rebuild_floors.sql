-- Resets floors and the resume floors of holds to 0 if the id sequence is known to have been restarted ($1), or if they lie above
-- every id drawn, which proves a restart: new ids appear below the floors. The raised epoch rejects a floor that is about to be
-- stored. A lane of a worker that has not stopped keeps its epoch, because rows are in flight under it: that worker notices the
-- restart itself.
WITH drawn AS MATERIALIZED (
    SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS id FROM outbox.message_id_seq
), invalid AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.floor > 0 AND ($1 OR l.floor > (SELECT id FROM drawn)) AND (SELECT incarnation FROM outbox.server) = $2
    ORDER BY l.lane FOR NO KEY UPDATE
), invalid_hold AS MATERIALIZED (
    SELECT h.lane, h.topic, h.unit FROM outbox.hold h
    WHERE h.resume_floor > 0 AND ($1 OR h.resume_floor > (SELECT id FROM drawn)) AND (SELECT incarnation FROM outbox.server) = $2
    ORDER BY h.lane, h.topic, h.unit FOR NO KEY UPDATE
), reset_hold AS (
    UPDATE outbox.hold h SET resume_floor = 0
    FROM invalid_hold i
    WHERE h.lane = i.lane AND h.topic = i.topic AND h.unit = i.unit
)
UPDATE outbox.lane l
SET floor = 0,
    epoch = l.epoch + CASE WHEN l.lane >= 0 AND l.owner IN (SELECT w.id FROM outbox.worker w WHERE w.stopped_at IS NULL) THEN 0 ELSE 1 END
FROM invalid
WHERE l.lane = invalid.lane
RETURNING l.lane
