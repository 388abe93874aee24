-- What workers ($1) had in flight, range by range. Run after take_lanes.sql, in its transaction: a worker that still marks does so under the lock
-- that the take has now.
SELECT f.worker, range.lane, range.first_id, range.last_id
FROM outbox.in_flight f CROSS JOIN unnest(f.lanes, f.first_ids, f.last_ids) AS range (lane, first_id, last_id)
WHERE f.worker = ANY ($1::uuid[])
  AND f.id >= (SELECT min(w.in_flight_from) FROM outbox.worker w WHERE w.id = ANY ($1::uuid[]))
