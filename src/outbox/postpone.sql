-- Still refused or still sick: look again later.
UPDATE outbox.hold
SET failures = failures + 1, reason = $4,
    retry_at = CASE WHEN $5::float8 < 0 THEN 'infinity' ELSE clock_timestamp() + $5::float8 * interval '1 second' END
WHERE lane = $1 AND topic = $2 AND unit = $3
