-- A standby that is promoted may lack the last writes of its primary: marks of rows already sent, leases, whole rows. So
-- each lane remembers which lineage of the server it was last used on.

-- The same for as long as no committed write can have been lost. That is one timeline; with asynchronous commits, one life
-- of the server. Not pg_control_checkpoint(): after a promotion that names the old timeline until the first checkpoint.
CREATE VIEW outbox.lineage AS
SELECT s.incarnation,
       substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
       || CASE WHEN 'off' IN (current_setting('synchronous_commit'), current_setting('fsync'))
               THEN ' ' || extract(epoch FROM s.incarnation) ELSE '' END AS name
FROM outbox.server s;

GRANT SELECT ON outbox.lineage TO outbox_relay, outbox_operator;

ALTER TABLE outbox.lane
    ADD COLUMN lineage text,
    ADD COLUMN lineage_since timestamptz NOT NULL DEFAULT '-infinity',
    -- Any row up to this id that is still to be sent may have been sent already, and its mark have been lost.
    ADD COLUMN suspect_until bigint NOT NULL DEFAULT 0;

UPDATE outbox.lane SET lineage = (SELECT name FROM outbox.lineage);
