-- The same answer as in V1, without a scan of what the function returns: every statement of the relay asks for it. A migration of its
-- own: whoever locks this view and outbox.message together meets relays that lock them the other way round.
CREATE OR REPLACE VIEW outbox.server AS
SELECT greatest(pg_postmaster_start_time(), (pg_stat_get_archiver()).stats_reset) AS incarnation;
