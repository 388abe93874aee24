-- Replication slots, and how much WAL the server keeps for each, most first.
SELECT s.slot_name::text AS name, s.active AS is_active, coalesce(s.wal_status, '') AS wal_status,
       coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                                s.restart_lsn), 0)::bigint AS kept_bytes
FROM pg_replication_slots s
ORDER BY kept_bytes DESC LIMIT 20
