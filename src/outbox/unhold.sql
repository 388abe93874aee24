-- A key let go while its whole topic is parked, and stays so: what it kept back is now the topic's to find again.
WITH gone AS (
    SELECT * FROM unnest($2::text[], $3::text[]) AS gone (topic, unit)
), inherited AS (
    UPDATE outbox.hold SET resume_floor = least(resume_floor, $4)
    WHERE lane = $1 AND unit = '' AND topic IN (SELECT topic FROM gone)
      AND topic NOT IN (SELECT topic FROM gone WHERE unit = '')
)
DELETE FROM outbox.hold h USING gone WHERE h.lane = $1 AND h.topic = gone.topic AND h.unit = gone.unit
