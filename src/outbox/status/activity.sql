-- Returns what was written to the table so far, by the statistics of the server. It counts rolled back inserts as well, and sessions add
-- to it once a second.
SELECT n_tup_ins AS inserted, n_tup_upd AS updated, n_tup_del AS deleted FROM pg_stat_user_tables WHERE relid = 'outbox.message'::regclass
