-- Returns which of these transactions have ended. Runs after a claim that relied on all of them being in progress: one that is in
-- progress now was in progress then.
SELECT writer
FROM unnest($1::bigint[]) AS writer
WHERE pg_visible_in_snapshot(writer::text::xid8, pg_current_snapshot())
