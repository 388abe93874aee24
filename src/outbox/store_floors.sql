-- Written seldom: a stale floor costs a little reading, a hot row costs everybody. Never lowered here.
UPDATE outbox.lane l
SET floor = seen.floor
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS seen (lane, epoch, floor)
WHERE l.lane = seen.lane AND l.epoch = seen.epoch AND l.owner = $1 AND l.floor < seen.floor
  AND pg_postmaster_start_time() = $5
