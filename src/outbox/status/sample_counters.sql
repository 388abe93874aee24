-- Returns the counters of commands and consumers since the server started. The duplicates without a consumer are those of all
-- consumers that are not named.
SELECT c.granted, c.replayed, c.conflicted, c.taken_over, d.conflicts AS payload_conflicts, d.taken_over AS inbox_taken_over,
       (SELECT coalesce(json_agg(json_build_object('consumer', n.consumer, 'count', n.duplicates_suppressed)), '[]')::text
        FROM outbox.consumer_duplicate_counters n) AS duplicates,
       (SELECT json_agg(json_build_object('outcome', t.outcome, 'at_most_seconds', t.at_most_seconds, 'count', t.attempts)
                        ORDER BY t.outcome, t.at_most_seconds)::text
        FROM outbox.idempotency_durations t) AS durations
FROM outbox.idempotency_counters c, outbox.consumer_counters d
