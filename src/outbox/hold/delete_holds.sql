-- Releases holds of a lane. Where other holds of the same topic may cover the same rows, because they keep back the whole topic
-- or a partition, their resume floors are lowered to include the rows of the released ones.
WITH released AS (
    SELECT * FROM unnest($2::text[], $3::text[]) AS released (topic, unit)
), lowered AS (
    UPDATE outbox.hold SET resume_floor = least(resume_floor, $4)
    WHERE lane = $1 AND (unit = '' OR partition IS NOT NULL) AND topic IN (SELECT topic FROM released)
      AND (topic, unit) NOT IN (SELECT topic, unit FROM released)
)
DELETE FROM outbox.hold h USING released WHERE h.lane = $1 AND h.topic = released.topic AND h.unit = released.unit
