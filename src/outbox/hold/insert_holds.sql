-- Inserts holds of a key, a partition or a topic. Runs after the fence, and before any floor passes the rows that they keep back.
INSERT INTO outbox.hold (lane, topic, unit, head_id, resume_floor, reason, failures, retry_at)
SELECT new.lane, new.topic, new.unit, new.head_id, new.resume_floor, new.reason, new.failures,
       -- Without a wait it waits for an operator.
       coalesce(clock_timestamp() + new.wait * interval '1 second', 'infinity')
FROM json_to_recordset($1::text::json)
     AS new (lane smallint, topic text, unit text, head_id bigint, resume_floor bigint, reason text, failures integer, wait float8)
ON CONFLICT (lane, topic, unit) DO UPDATE
SET reason = excluded.reason, retry_at = excluded.retry_at, failures = hold.failures + excluded.failures,
    head_id = coalesce(hold.head_id, excluded.head_id),
    -- The lower of the two, because the existing hold may have let the floor pass rows below the new one.
    resume_floor = least(hold.resume_floor, excluded.resume_floor)
