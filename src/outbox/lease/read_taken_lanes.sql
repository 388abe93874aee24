-- Returns what the new owner of lanes ($1) needs to know of their last owners ($2). Runs after take_lanes.sql in its transaction:
-- the take may have waited for a lock with an older snapshot while an expired owner was still writing. Now that the lanes are
-- locked, no worker writes.
SELECT l.lane, l.maybe_sent, ARRAY(SELECT DISTINCT h.topic FROM outbox.hold h WHERE h.lane = l.lane) AS held_topics,
       -- A crash may have lost in-flight entries of another incarnation of the server. Then any row may have been sent.
       EXISTS (SELECT FROM outbox.worker w
               WHERE w.id = taken.owner AND w.incarnation IS DISTINCT FROM (SELECT incarnation FROM outbox.server)) AS entries_lost,
       (SELECT last_value FROM outbox.message_id_seq) AS last_id
FROM unnest($1::smallint[], $2::uuid[]) AS taken (lane, owner) JOIN outbox.lane l ON l.lane = taken.lane
