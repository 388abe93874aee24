-- Counts what a replay would take now, by topic.
SELECT topic, messages, oldest, newest
FROM outbox.replay_preview($1::text[], $2::text[], $3::timestamptz, $4::timestamptz, $5::text::int8multirange)
