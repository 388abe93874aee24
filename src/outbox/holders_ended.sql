-- Which of these transactions have ended? Asked after a claim that relied on all of them being in progress: what still is
-- now was so then.
SELECT holder
FROM unnest($1::bigint[]) AS holder
WHERE pg_visible_in_snapshot(holder::text::xid8, pg_current_snapshot())
