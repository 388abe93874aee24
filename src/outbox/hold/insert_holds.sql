-- Keep a key, a partition or a topic back. Precedes the floor that passes its rows. Run behind the fence.
INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, failures, retry_at)
SELECT held.lane, held.topic, held.unit, held.head_id, held.floor, held.reason, held.failures,
       CASE WHEN held.wait < 0 THEN 'infinity' ELSE clock_timestamp() + held.wait * interval '1 second' END
FROM unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::integer[], $8::float8[])
     AS held (lane, topic, unit, head_id, floor, reason, failures, wait)
ON CONFLICT (lane, topic, unit) DO UPDATE
SET reason = excluded.reason, retry_at = excluded.retry_at, failures = hold.failures + excluded.failures,
    head_id = coalesce(hold.head_id, excluded.head_id),
    -- The lower of the two: the first hold may have let the floor pass rows the second knows nothing of.
    resume_floor = least(hold.resume_floor, excluded.resume_floor)
