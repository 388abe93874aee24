-- Has any of these transactions ended? Asked after a claim that relied on all of them being in progress: what still is
-- now was so then.
SELECT coalesce(bool_or(pg_visible_in_snapshot(holder::text::xid8, pg_current_snapshot())), false) AS ended
FROM unnest($1::bigint[]) AS holder
