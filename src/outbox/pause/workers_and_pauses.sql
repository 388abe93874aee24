-- Returns every live worker, and whether all that it sends obeys the pauses of this version ($1), or later ones.
SELECT w.name, w.pauses_seen >= $1 AS obeys
FROM outbox.worker w
WHERE w.stopped_at IS NULL AND w.lease_until > clock_timestamp()
ORDER BY w.name
