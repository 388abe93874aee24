-- A key let go while its whole topic is parked: what it kept back is now the topic's to find again.
WITH inherited AS (
    UPDATE outbox.hold SET resume_floor = least(resume_floor, $4)
    WHERE lane = $1 AND topic = $2 AND unit = '' AND $3 <> ''
)
DELETE FROM outbox.hold WHERE lane = $1 AND topic = $2 AND unit = $3
