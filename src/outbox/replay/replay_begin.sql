-- Begins a replay. Returns its operation and how many messages it has, or no row if nothing matches any more.
SELECT operation, matched
FROM outbox.replay_begin($1::text[], $2::text[], $3::timestamptz, $4::timestamptz, $5::text::int8multirange, $6, $7::text::jsonb)
WHERE operation IS NOT NULL
