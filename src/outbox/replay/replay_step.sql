SELECT changed, gone, conflicts, reached, extract(epoch FROM wait)::float8 AS wait_seconds, finished
FROM outbox.replay_step($1, $2, $3)
