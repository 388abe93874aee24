-- Asked before there is a schema: some managed servers refuse these functions.
SELECT pg_walfile_name(pg_current_wal_insert_lsn())
