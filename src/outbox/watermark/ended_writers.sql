-- Which of these transactions have ended? Run after a claim that relied on all of them being in progress: what is in progress
-- now was so then.
SELECT writer
FROM unnest($1::bigint[]) AS writer
WHERE pg_visible_in_snapshot(writer::text::xid8, pg_current_snapshot())
