-- Oldest outboxd schema that may run on this: 13

-- ── Which binaries may run ─────────────────────────────────────────────────────────────────────

-- A rollout runs two versions side by side, and may be undone. A binary that knows a schema older than the one it finds may run if it knows
-- at least this one. A migration that an older binary cannot run on raises it; each says so in its first line.
CREATE TABLE outbox.compatibility (oldest_schema integer NOT NULL);
CREATE UNIQUE INDEX compatibility_is_one_row ON outbox.compatibility ((true));
-- Binaries that know V13 and run already go on; they do not know this table, and refuse to start beside a newer schema.
INSERT INTO outbox.compatibility VALUES (13);
GRANT SELECT ON outbox.compatibility TO outbox_relay, outbox_operator;

-- ── What an operator does to messages and holds ────────────────────────────────────────────────

-- Operators act on messages and holds through functions, which leave no row behind a floor. The raw rights to do so by hand go.

-- Sends dead letters again, once what refused them is fixed. Answers how many; rows that are not dead are left alone.
-- available_at puts a row where delayed rows are found: a floor may have passed it. Where its key has waited behind it, the relay tries
-- it at once and then lets the key continue, in order.
CREATE FUNCTION outbox.redrive(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH dead AS MATERIALIZED (
        SELECT m.id FROM outbox.message m
        WHERE m.id = ANY (redrive.ids) AND m.dead_at IS NOT NULL
        ORDER BY m.id FOR UPDATE
    ), redriven AS (
        UPDATE outbox.message m SET dead_at = NULL, attempts = 0, available_at = now()
        WHERE m.id = ANY (ARRAY(SELECT id FROM dead))
        RETURNING m.id
    ), due AS (
        UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (ARRAY(SELECT id FROM redriven))
    )
    SELECT count(*) FROM redriven
$$;

-- Removes dead letters for good. Answers how many; a pending or published row is never removed. A key that waited behind one continues:
-- the relay finds the row gone.
CREATE FUNCTION outbox.discard(ids bigint[]) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH dead AS MATERIALIZED (
        SELECT m.id FROM outbox.message m
        WHERE m.id = ANY (discard.ids) AND m.dead_at IS NOT NULL
        ORDER BY m.id FOR UPDATE
    ), discarded AS (
        DELETE FROM outbox.message m
        WHERE m.id = ANY (ARRAY(SELECT id FROM dead))
        RETURNING m.id
    ), due AS (
        UPDATE outbox.hold h SET retry_at = now() WHERE h.head_id = ANY (ARRAY(SELECT id FROM discarded))
    )
    SELECT count(*) FROM discarded
$$;

-- The relay looks at a hold now: of a key, of an explicit partition, or with neither of the topic as a whole. Where the row that is waited
-- for is pending, it is tried again. Where it is dead, it stays so, and the rows behind it flow. Answers how many holds there were.
CREATE FUNCTION outbox.release_hold(topic text, key text DEFAULT NULL, partition integer DEFAULT NULL) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH due AS (
        UPDATE outbox.hold h SET retry_at = now()
        WHERE h.topic = release_hold.topic
          AND h.unit = coalesce('k:' || release_hold.key, 'p:' || release_hold.partition, '')
        RETURNING h.lane
    )
    SELECT count(*) FROM due
$$;

-- One bounded step of retention, by id, above the row that the step before reached. Only what is published and old enough: never a pending
-- or dead row. Answers where it stopped, how many rows went, and whether all that follows is too young.
CREATE FUNCTION outbox.purge_message(older_than interval, after bigint DEFAULT 0, most integer DEFAULT 2000,
                                     OUT reached bigint, OUT purged bigint, OUT young boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.refuse_purge(older_than, most);
    WITH chunk AS MATERIALIZED (
        SELECT m.id, m.published_at, m.created_at FROM outbox.message m WHERE m.id > after ORDER BY m.id LIMIT most
    ), gone AS (
        -- By an array of ids, not by a join: a join may walk the whole table.
        DELETE FROM outbox.message m
        WHERE m.id = ANY (ARRAY(
            -- What somebody holds is left for the next pass: whoever waits keeps others waiting.
            SELECT o.id FROM outbox.message o
            WHERE o.id = ANY (ARRAY(SELECT c.id FROM chunk c WHERE c.published_at < clock_timestamp() - older_than))
              AND o.published_at < clock_timestamp() - older_than
            FOR UPDATE SKIP LOCKED))
        RETURNING m.id
    )
    SELECT max(c.id), (SELECT count(*) FROM gone),
           -- Nothing further on can be old enough either once every row of a chunk is this young.
           coalesce(min(c.created_at) > clock_timestamp() - older_than, true)
    INTO reached, purged, young
    FROM chunk c;
END $$;

REVOKE ALL ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold, outbox.purge_message FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold TO outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.purge_message TO outbox_operator, outbox_relay;

-- With these an operator could mark a pending row published, or strand one that a floor has passed.
REVOKE DELETE, UPDATE (available_at, published_at, dead_at, attempts, last_error) ON outbox.message FROM outbox_operator;
REVOKE UPDATE (retry_at) ON outbox.hold FROM outbox_operator;

-- ── What a producer reads back ─────────────────────────────────────────────────────────────────

-- INSERT … RETURNING id, message_id, as object mappers write it. Column by column: nothing else of a message is a producer's to read.
GRANT SELECT (id, message_id) ON outbox.message TO outbox_producer;

-- The message that has this idempotency key, if one has. A producer may not read the columns to look for it.
CREATE FUNCTION outbox.enqueued(idempotency_scope text, idempotency_key text, event_type text) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.message_id FROM outbox.message m
    WHERE m.idempotency_scope = enqueued.idempotency_scope AND m.idempotency_key = enqueued.idempotency_key
      AND m.event_type = enqueued.event_type
$$;

REVOKE ALL ON FUNCTION outbox.enqueued FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.enqueued TO outbox_producer;

-- As in V1, and with if_new: where a message has this idempotency key already, its id is the answer, and nothing is inserted. Whoever
-- inserts it at the same moment is waited for.
CREATE FUNCTION outbox.enqueue(
    topic text, key text DEFAULT NULL, payload jsonb DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    headers jsonb DEFAULT NULL, event_type text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, aggregate_version bigint DEFAULT NULL,
    idempotency_scope text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, partition integer DEFAULT NULL, message_id uuid DEFAULT NULL,
    if_new boolean DEFAULT false
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    new_id uuid := coalesce(message_id, gen_random_uuid());
    earlier uuid;
BEGIN
    IF if_new THEN
        IF idempotency_key IS NULL THEN
            RAISE invalid_parameter_value USING MESSAGE = 'if_new needs an idempotency_key to tell a new message by';
        END IF;
        -- Without a conflict target, which would need SELECT on its columns.
        INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                                    aggregate_version, idempotency_scope, idempotency_key, available_at, partition, message_id)
        VALUES (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                aggregate_version, idempotency_scope, idempotency_key, available_at, partition, new_id)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN new_id;
        END IF;
        -- A statement of its own, behind the wait: it sees what whoever was first has committed.
        earlier := outbox.enqueued(idempotency_scope, idempotency_key, event_type);
        IF earlier IS NOT NULL THEN
            RETURN earlier;
        END IF;
        -- The earlier message has just been published and removed, or it is the message_id that is another's: the INSERT below tells.
    END IF;
    INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                                aggregate_version, idempotency_scope, idempotency_key, available_at, partition, message_id)
    VALUES (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
            aggregate_version, idempotency_scope, idempotency_key, available_at, partition, new_id);
    RETURN new_id;
END $$;

-- A parameter more makes it another function. Whoever was granted the first may call the second, which then takes its place.
DO $$
DECLARE
    former constant regprocedure := 'outbox.enqueue(text, text, jsonb, bytea, jsonb, text, text, text, bigint, text, text, timestamptz,
                                                    integer, uuid)';
    present constant regprocedure := 'outbox.enqueue(text, text, jsonb, bytea, jsonb, text, text, text, bigint, text, text, timestamptz,
                                                     integer, uuid, boolean)';
    caller record;
BEGIN
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', present);
    FOR caller IN
        SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS name
        FROM pg_proc p, aclexplode(p.proacl) a WHERE p.oid = former AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', present, caller.name);
    END LOOP;
    EXECUTE format('DROP FUNCTION %s', former);
END $$;

-- ── The history ────────────────────────────────────────────────────────────────────────────────

-- To make a day locks the default partition against everybody. Whoever waits for that lock behind a backup makes all wait who come after,
-- so a day is left for the next time after a tenth of a second.
CREATE OR REPLACE FUNCTION outbox.history_prepare(days_ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '4s' AS $$
DECLARE
    today constant date := (now() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
    made integer := 0;
BEGIN
    -- Two replicas preparing at once must not collide. The second waits, so that it does not publish before the first has made the day.
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.history', 0));
    PERFORM set_config('lock_timeout', '100ms', true);
    FOR day IN SELECT generate_series(today, today + days_ahead, '1 day')::date LOOP
        part := 'history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('outbox.' || part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE outbox.%I PARTITION OF outbox.history FOR VALUES FROM (%L) TO (%L)',
                           part, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
            made := made + 1;
        EXCEPTION
            -- Rows of that day already lie in the default partition, and stay there until they are old: to move them would lock it, and
            -- with it every mark of that day, for as long as that takes. Retention deletes them row by row instead.
            WHEN check_violation THEN NULL;
            WHEN lock_not_available THEN EXIT;
        END;
    END LOOP;
    RETURN made;
END $$;

-- Drops the days that are older. To drop one locks the whole history against everybody: where a backup or another reader is in the way, the days
-- are left for the next time, and so is a single one that somebody reads. Answers how many went, and how many were left.
CREATE FUNCTION outbox.history_expire(older_than interval, OUT dropped integer, OUT locked integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' AS $$
DECLARE
    due name[];
    part name;
BEGIN
    IF older_than < interval '1 hour' THEN
        RAISE EXCEPTION 'the history keeps at least an hour, got %', older_than USING ERRCODE = 'invalid_parameter_value';
    END IF;
    dropped := 0;
    due := ARRAY(SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
                 WHERE i.inhparent = 'outbox.history'::regclass AND c.relname ~ '^history_\d{8}$'
                   AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (now() - older_than) AT TIME ZONE 'UTC'
                 ORDER BY c.relname);
    locked := cardinality(due);
    -- Before anything is locked: it may take a while.
    DELETE FROM outbox.history_default WHERE published_at < now() - older_than;
    IF locked = 0 THEN
        RETURN;
    END IF;
    BEGIN
        -- What a DROP locks beside the day itself. Waited for once, not once a day.
        LOCK TABLE ONLY outbox.history, outbox.history_default IN ACCESS EXCLUSIVE MODE;
    EXCEPTION
        WHEN lock_not_available THEN RETURN;
    END;
    FOREACH part IN ARRAY due LOOP
        BEGIN
            -- Everybody waits for us by now, so we wait for nobody.
            EXECUTE format('LOCK TABLE outbox.%I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
            EXECUTE format('DROP TABLE outbox.%I', part);
            dropped := dropped + 1;
            locked := locked - 1;
        EXCEPTION
            WHEN lock_not_available THEN NULL;
        END;
    END LOOP;
END $$;

-- As relays from before V14 call it.
CREATE OR REPLACE FUNCTION outbox.history_drop(older_than interval) RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT e.dropped FROM outbox.history_expire(history_drop.older_than) e
$$;

REVOKE ALL ON FUNCTION outbox.history_expire FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.history_expire TO outbox_relay, outbox_operator;

-- ── Which lineage a server is on ───────────────────────────────────────────────────────────────

-- The timeline, or NULL where the server refuses to say: some managed ones do not support these functions.
CREATE FUNCTION outbox.timeline() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION
    WHEN OTHERS THEN RETURN NULL;
END $$;

REVOKE ALL ON FUNCTION outbox.timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.timeline TO outbox_relay, outbox_operator;

-- As in V2. Where the timeline is not known, a restart may have been a failover, and so each life of the server is a lineage of its own.
CREATE OR REPLACE VIEW outbox.lineage AS
SELECT s.incarnation,
       coalesce(t.timeline, 'unknown')
       || CASE WHEN t.timeline IS NULL OR 'off' IN (current_setting('synchronous_commit'), current_setting('fsync'))
               THEN ' ' || extract(epoch FROM s.incarnation) ELSE '' END AS name
FROM outbox.server s, outbox.timeline() AS t (timeline);

-- Where `outboxd migrate` had to stand in for the server (see src/outbox/timeline_stand_ins.sql).
UPDATE outbox.lane l SET lineage = v.name FROM outbox.lineage v WHERE l.lineage LIKE 'unknown%';
DROP FUNCTION IF EXISTS outbox.pg_walfile_name(pg_lsn), outbox.pg_current_wal_insert_lsn();
