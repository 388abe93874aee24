-- Returns what these workers had in flight, range by range. Runs after take_lanes.sql in its transaction: a worker that is still
-- marking does so under the lane locks that the take now has.
SELECT f.worker, range.lane, range.first_id, range.last_id
FROM outbox.in_flight f CROSS JOIN unnest(f.lanes, f.first_ids, f.last_ids) AS range (lane, first_id, last_id)
WHERE f.worker = ANY ($1::uuid[])
  AND f.id >= (SELECT min(w.in_flight_from) FROM outbox.worker w WHERE w.id = ANY ($1::uuid[]))
