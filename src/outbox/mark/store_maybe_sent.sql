-- What may have been sent of these lanes and is not marked. Run after the fence, by the task that has them checked out.
UPDATE outbox.lane l SET maybe_sent = given.maybe_sent::bigint[]
FROM unnest($1::smallint[], $2::text[]) AS given (lane, maybe_sent)
WHERE l.lane = given.lane
