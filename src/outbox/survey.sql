-- Who is here and how many lanes each holds: the input of the sharing rule.
SELECT w.id, extract(epoch FROM w.lease_until - clock_timestamp())::float8 AS lease_left,
       (SELECT count(*) FROM outbox.lane l WHERE l.owner = w.id) AS lanes, clock_timestamp() AS now
FROM outbox.worker w
WHERE w.stopped_at IS NULL
