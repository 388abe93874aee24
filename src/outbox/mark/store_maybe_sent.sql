-- Stores which rows of these lanes may have been sent and are not marked. Runs in a transaction that has locked the lanes.
UPDATE outbox.lane l SET maybe_sent = known.maybe_sent
FROM json_to_recordset($1::text::json) AS known (lane smallint, maybe_sent bigint[])
WHERE l.lane = known.lane
