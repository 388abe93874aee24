-- Begins a replay. Returns its operation, or NULL if nothing matches any more.
SELECT operation
FROM outbox.replay_begin($1::text[], $2::text[], $3::timestamptz, $4::timestamptz, {replayed_ids}, $6, $7::text::jsonb)
