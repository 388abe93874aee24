-- Hand lanes back, with what the next owner should know. Ours only, by owner and epoch.
UPDATE outbox.lane l
SET owner = NULL, suspect_rows = given.suspect_rows, floor = greatest(l.floor, given.floor)
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::integer[]) AS given (lane, epoch, floor, suspect_rows)
WHERE l.lane = given.lane AND l.epoch = given.epoch AND l.owner = $1
  AND pg_postmaster_start_time() = $6
