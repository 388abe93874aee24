-- Holds of a lane are let go. Where others of their topic stay that may cover the same rows, of the whole topic or of a partition, what these
-- kept back is now theirs to find again.
WITH gone AS (
    SELECT * FROM unnest($2::text[], $3::text[]) AS gone (topic, unit)
), inherited AS (
    UPDATE outbox.hold SET resume_floor = least(resume_floor, $4)
    WHERE lane = $1 AND (unit = '' OR partition IS NOT NULL) AND topic IN (SELECT topic FROM gone)
      AND (topic, unit) NOT IN (SELECT topic, unit FROM gone)
)
DELETE FROM outbox.hold h USING gone WHERE h.lane = $1 AND h.topic = gone.topic AND h.unit = gone.unit
