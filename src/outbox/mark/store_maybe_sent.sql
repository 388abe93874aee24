-- Stores which rows of these lanes may have been sent and are not marked. Runs in a transaction that has locked the lanes.
UPDATE outbox.lane l SET maybe_sent = known.maybe_sent::bigint[]
FROM unnest($1::smallint[], $2::text[]) AS known (lane, maybe_sent)
WHERE l.lane = known.lane
