-- Inserts holds of a key, a partition or a topic. Runs after the fence, and before any floor passes the rows that they keep back.
INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, failures, retry_at)
SELECT new.lane, new.topic, new.unit, new.head_id, new.floor, new.reason, new.failures,
       CASE WHEN new.wait < 0 THEN 'infinity' ELSE clock_timestamp() + new.wait * interval '1 second' END
FROM unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::integer[], $8::float8[])
     AS new (lane, topic, unit, head_id, floor, reason, failures, wait)
ON CONFLICT (lane, topic, unit) DO UPDATE
SET reason = excluded.reason, retry_at = excluded.retry_at, failures = hold.failures + excluded.failures,
    head_id = coalesce(hold.head_id, excluded.head_id),
    -- The lower of the two, because the existing hold may have let the floor pass rows below the new one.
    resume_floor = least(hold.resume_floor, excluded.resume_floor)
