-- Oldest outboxd schema that may run on this: 1
--
-- The outbox: the table that applications insert messages into, and what the relay keeps to carry them to Kafka.
--
-- The life of a row in outbox.message:
--
--   pending ──(acknowledged)──▶ published   published_at set, or the row deleted / moved to outbox.history
--      │  ▲
--      │  └──(redriven)──────┐
--      └──(refused for good)─▶ dead          dead_at set
--
-- A pending row may be delayed (available_at lies in the future), in flight (outbox.in_flight or outbox.claim names it) or
-- held (outbox.hold names its key, its partition or its topic). None of these is a state of its own: each ends by itself or
-- with its owner.

-- ── Roles ──────────────────────────────────────────────────────────────────────────────────────

-- Three roles, to be granted to your own logins: GRANT outbox_producer TO orders_service;
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_producer', 'outbox_relay', 'outbox_operator'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_roles WHERE rolname = wanted);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            -- Roles belong to the whole cluster: another database may be migrating at this moment.
            WHEN duplicate_object OR unique_violation THEN NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % does not exist and % may not create it', wanted, current_user
                USING ERRCODE = 'insufficient_privilege',
                      HINT = format('Let an administrator run: CREATE ROLE %I NOLOGIN; then run outboxd migrate again.', wanted);
        END;
    END LOOP;
END $$;

REVOKE ALL ON SCHEMA outbox FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO outbox_producer, outbox_relay, outbox_operator;

-- ── Versions of outboxd ────────────────────────────────────────────────────────────────────────

-- A rollout runs two versions of outboxd side by side, and may be undone. A binary that finds a schema newer than the one it
-- knows may run if it knows at least this one. A migration that an older binary cannot run on raises the number. Each
-- migration states it in its first line.
CREATE TABLE outbox.compatibility (oldest_schema integer NOT NULL);
CREATE UNIQUE INDEX compatibility_is_one_row ON outbox.compatibility ((true));
INSERT INTO outbox.compatibility VALUES (1);

GRANT SELECT ON outbox.compatibility, outbox.schema_history TO outbox_relay;

-- ── Messages ───────────────────────────────────────────────────────────────────────────────────

CREATE TABLE outbox.message (
    -- Wide fixed columns come first: without padding the application's INSERT writes fewer bytes.
    -- CACHE 1: a session that cached ids would insert rows out of order.
    id                 bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at       timestamptz,
    published_at       timestamptz,
    dead_at            timestamptz,
    aggregate_version  bigint,
    message_id         uuid NOT NULL DEFAULT gen_random_uuid(),
    partition          integer,
    attempts           smallint NOT NULL DEFAULT 0,
    -- Rows of one lane are sent in the order of their ids; NULL: unordered. Computed by the trigger below.
    lane               smallint,
    topic              text NOT NULL,
    key                text,
    event_type         text,
    aggregate_type     text,
    aggregate_id       text,
    idempotency_scope  text,
    idempotency_key    text,
    last_error         text,
    headers            jsonb,
    payload            jsonb,
    payload_bytes      bytea,

    -- The only rule about columns that change later, and so the only CHECK.
    CONSTRAINT message_is_not_two_of_delayed_published_and_dead CHECK (num_nonnulls(available_at, published_at, dead_at) <= 1)
)
-- With on_published = keep a mark writes a new version of the row. Where that version fits on the row's own page the update is
-- HOT and touches no index. A batch marks about a third of a page's rows at once. A quarter of the page is room enough for them
-- only while the replaced versions can be pruned, which an open transaction anywhere in the database prevents. With half of the
-- page free nearly every version finds room either way.
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
      autovacuum_analyze_scale_factor = 0.05);

-- A column that a mark writes in an index or in its predicate would end HOT updates. Two are worth an index all the same:
-- available_at, which a mark only ever sets to NULL, and dead_at, which marks do not change.
CREATE UNIQUE INDEX message_message_id ON outbox.message (message_id);
CREATE INDEX message_lane ON outbox.message (lane, id) WHERE lane IS NOT NULL;
CREATE INDEX message_unordered ON outbox.message (id) WHERE lane IS NULL;
CREATE INDEX message_delayed ON outbox.message (available_at, id) WHERE available_at IS NOT NULL;
CREATE INDEX message_dead ON outbox.message (dead_at) WHERE dead_at IS NOT NULL;
CREATE UNIQUE INDEX message_idempotency ON outbox.message (idempotency_scope, idempotency_key, event_type)
    WHERE idempotency_key IS NOT NULL;

COMMENT ON TABLE outbox.message IS 'Insert here in your own transaction; outboxd carries the row to Kafka once it commits.';
COMMENT ON COLUMN outbox.message.id IS 'Row order. Drawn by the database; never set it.';
COMMENT ON COLUMN outbox.message.message_id IS 'The dedup key that travels with the record (header message-id).';
COMMENT ON COLUMN outbox.message.available_at IS 'Not before this time; NULL = at once. The row takes its place in the order of its key when it is due.';
COMMENT ON COLUMN outbox.message.attempts IS 'How often Kafka refused this very row. An outage never counts.';

-- Checks a new message and computes its lane. Neither is done by CHECKs or a generated column: PostgreSQL parses and plans
-- those anew in every statement, marks included, and would check each marked row against rules about columns that no mark may
-- change.
--
-- PL/pgSQL prepares each expression that it reaches anew in every transaction, with every function in it, called or not. So the
-- rules about headers and partition, which few messages have, are checked for those messages alone.
--
-- All names are qualified: the search_path is the application's.
CREATE FUNCTION outbox.message_before_insert() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken text := CASE
        -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row.
        WHEN NEW.topic OPERATOR(pg_catalog.~) '[^a-zA-Z0-9._-]|^[.]?[.]?$'
                OR pg_catalog.octet_length(NEW.topic) OPERATOR(pg_catalog.>) 249
            THEN 'message_topic_is_a_legal_kafka_name'
        -- Texts beside the payload become headers of the record. Which one is too long is determined below, for refused rows alone.
        WHEN greatest(pg_catalog.octet_length(NEW.key), pg_catalog.octet_length(NEW.event_type),
                      pg_catalog.octet_length(NEW.aggregate_type), pg_catalog.octet_length(NEW.aggregate_id),
                      pg_catalog.octet_length(NEW.idempotency_scope), pg_catalog.octet_length(NEW.idempotency_key))
                OPERATOR(pg_catalog.>) 1024
            THEN 'one of its texts is too long'
        WHEN NEW.payload IS NOT NULL AND NEW.payload_bytes IS NOT NULL
            THEN 'message_has_one_payload_at_most'
        WHEN NEW.payload IS NULL AND NEW.payload_bytes IS NULL AND NEW.key IS NULL
            THEN 'message_without_payload_is_a_tombstone_and_needs_a_key'
        -- NULLs never collide in a unique index: a key without scope or type would let duplicates in.
        WHEN NEW.idempotency_key IS NOT NULL AND (NEW.idempotency_scope IS NULL OR NEW.event_type IS NULL)
            THEN 'message_idempotency_key_needs_scope_and_event_type'
        WHEN NEW.attempts OPERATOR(pg_catalog.<) 0
            THEN 'message_attempts_are_not_negative'
    END;
BEGIN
    IF NEW.headers IS NOT NULL OR NEW.partition IS NOT NULL THEN
        broken := CASE
            WHEN broken IS NOT NULL
                THEN broken
            WHEN NEW.partition OPERATOR(pg_catalog.<) 0
                THEN 'message_partition_is_not_negative'
            WHEN pg_catalog.jsonb_typeof(NEW.headers) OPERATOR(pg_catalog.<>) 'object'
                THEN 'message_headers_are_a_json_object'
            WHEN NEW.headers OPERATOR(pg_catalog.?|) ARRAY['message-id', 'event-type', 'aggregate-type', 'aggregate-id',
                                                           'aggregate-version', 'possible-duplicate']
                THEN 'message_headers_do_not_use_the_relays_names'
            -- Measured as text: a number of 16 bytes can have 131,072 digits.
            WHEN pg_catalog.octet_length(NEW.headers::pg_catalog.text) OPERATOR(pg_catalog.>) 65536
                THEN 'message_headers_are_at_most_65536_bytes'
        END;
    END IF;
    -- The error is that of a violated CHECK, with the rule as the name of the constraint, so that applications can tell them apart.
    IF broken IS NOT NULL THEN
        IF broken OPERATOR(pg_catalog.=) 'one of its texts is too long' THEN
            broken := CASE
                WHEN pg_catalog.octet_length(NEW.key) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_key_is_at_most_1024_bytes'
                WHEN pg_catalog.octet_length(NEW.event_type) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_event_type_is_at_most_1024_bytes'
                WHEN pg_catalog.octet_length(NEW.aggregate_type) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_aggregate_type_is_at_most_1024_bytes'
                WHEN pg_catalog.octet_length(NEW.aggregate_id) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_aggregate_id_is_at_most_1024_bytes'
                WHEN pg_catalog.octet_length(NEW.idempotency_scope) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_idempotency_scope_is_at_most_1024_bytes'
                WHEN pg_catalog.octet_length(NEW.idempotency_key) OPERATOR(pg_catalog.>) 1024
                    THEN 'message_idempotency_key_is_at_most_1024_bytes'
            END;
        END IF;
        RAISE check_violation USING
            MESSAGE = pg_catalog.format('new row for relation "message" violates check constraint "%s"', broken),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = broken;
    END IF;
    -- Rows with the same key share a lane, and so do rows without a key but with the same topic and explicit partition. These
    -- expressions are frozen: others would put old and new rows of one key into two lanes.
    IF NEW.key IS NOT NULL THEN
        NEW.lane := (pg_catalog.hashtextextended(NEW.key COLLATE pg_catalog."C", 0) OPERATOR(pg_catalog.&) 63)::pg_catalog.int2;
    ELSIF NEW.partition IS NOT NULL THEN
        NEW.lane := (pg_catalog.hashtextextended(NEW.topic COLLATE pg_catalog."C", NEW.partition)
                     OPERATOR(pg_catalog.&) 63)::pg_catalog.int2;
    ELSE
        NEW.lane := NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION outbox.message_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = 'topic, key, partition and lane of a message never change',
        HINT = 'The order of its key depends on them: insert a new message and delete this one.';
END $$;

REVOKE ALL ON FUNCTION outbox.message_before_insert, outbox.message_refuse_update FROM PUBLIC;

-- Triggers fire in the order of their names: the last one sees the row as the application's own triggers have left it.
CREATE TRIGGER zz_message_before_insert BEFORE INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION outbox.message_before_insert();
-- A statement trigger: with a row trigger every mark would lock each of its rows beforehand, though it names none of these columns.
CREATE TRIGGER message_refuse_update BEFORE UPDATE OF topic, key, partition, lane ON outbox.message
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.message_refuse_update();
-- Some tools load rows with session_replication_role = replica, which would skip ordinary triggers. A row with a key or a
-- partition and without a lane can only come from a session that disabled the trigger: the relay refuses to send it, and says
-- so in its last_error. A CHECK against it would cost every INSERT and every mark.
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER zz_message_before_insert, ENABLE ALWAYS TRIGGER message_refuse_update;

-- Column by column: with INSERT on the whole table, COPY writes any id through GENERATED ALWAYS.
GRANT INSERT (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id, aggregate_version,
              idempotency_scope, idempotency_key, available_at, partition, message_id)
    ON outbox.message TO outbox_producer;
-- For INSERT … RETURNING id, message_id, as object mappers write it. A producer may read no other column.
GRANT SELECT (id, message_id) ON outbox.message TO outbox_producer;
GRANT SELECT, DELETE, UPDATE (available_at, published_at, dead_at, attempts, last_error) ON outbox.message TO outbox_relay;
GRANT SELECT ON SEQUENCE outbox.message_id_seq TO outbox_relay, outbox_operator;

-- ── Enqueue ────────────────────────────────────────────────────────────────────────────────────

-- The message that has this idempotency key, if there is one. A producer may not read the columns itself.
CREATE FUNCTION outbox.enqueued(idempotency_scope text, idempotency_key text, event_type text) RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT m.message_id FROM outbox.message m
    WHERE m.idempotency_scope = enqueued.idempotency_scope AND m.idempotency_key = enqueued.idempotency_key
      AND m.event_type = enqueued.event_type
$$;

-- The INSERT as a call with named arguments. Returns the message id. With if_new, a message that has this idempotency key
-- already is not inserted again: its id is returned. A concurrent transaction that inserts the same key is waited for.
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
        -- A statement of its own, after the wait: its snapshot contains what the other transaction has committed.
        earlier := outbox.enqueued(idempotency_scope, idempotency_key, event_type);
        IF earlier IS NOT NULL THEN
            RETURN earlier;
        END IF;
        -- The earlier message has just been published and removed, or the conflict is one of message_id: the INSERT below tells which.
    END IF;
    INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                                aggregate_version, idempotency_scope, idempotency_key, available_at, partition, message_id)
    VALUES (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
            aggregate_version, idempotency_scope, idempotency_key, available_at, partition, new_id);
    RETURN new_id;
END $$;

REVOKE ALL ON FUNCTION outbox.enqueued, outbox.enqueue FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.enqueued, outbox.enqueue TO outbox_producer;

-- ── The server ─────────────────────────────────────────────────────────────────────────────────

-- Which run of this server it is. The incarnation changes with every start, and when the crash of one backend makes the server
-- recover in place (which keeps the start time, but discards the statistics). Ids and floors of another incarnation mean
-- nothing: after a crash ids can be drawn again.
--
-- The function, not the view pg_stat_archiver: every statement of the relay reads this.
CREATE VIEW outbox.server AS
SELECT greatest(pg_postmaster_start_time(), (pg_stat_get_archiver()).stats_reset) AS incarnation;

-- The timeline of the server, or NULL where it refuses to tell: some managed servers do not support these functions. Not
-- pg_control_checkpoint(): after a promotion that names the old timeline until the first checkpoint.
CREATE FUNCTION outbox.timeline() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
EXCEPTION
    WHEN OTHERS THEN RETURN NULL;
END $$;

-- The lineage stays the same for as long as no committed write can have been lost. A standby that is promoted may lack the last
-- writes of its primary: marks of rows that were sent, leases, whole rows. So a lineage is one timeline; with asynchronous
-- commits, or where the timeline is unknown and a restart may have been a failover, it is one incarnation.
CREATE VIEW outbox.lineage AS
SELECT s.incarnation,
       coalesce(t.timeline, 'unknown')
       || CASE WHEN t.timeline IS NULL OR 'off' IN (current_setting('synchronous_commit'), current_setting('fsync'))
               THEN ' ' || extract(epoch FROM s.incarnation) ELSE '' END AS name
FROM outbox.server s, outbox.timeline() AS t (timeline);

REVOKE ALL ON FUNCTION outbox.timeline FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.timeline TO outbox_relay, outbox_operator;
GRANT SELECT ON outbox.server, outbox.lineage TO outbox_relay;

-- ── Workers and lanes ──────────────────────────────────────────────────────────────────────────

-- One row per relay process. Its lease covers every lane it owns, so that a renewal writes one row and not 64.
CREATE TABLE outbox.worker (
    id               uuid PRIMARY KEY,
    name             text NOT NULL,
    version          text NOT NULL,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until      timestamptz NOT NULL,
    -- Once this is set the worker owns nothing any more, whatever outbox.lane says. It is never reset.
    stopped_at       timestamptz,
    -- The incarnation of the server in which its rows of outbox.in_flight are complete. They are committed asynchronously, so a
    -- crash may lose the last of them.
    incarnation      timestamptz NOT NULL,
    -- None of its rows of outbox.in_flight has a lower id, so that reading them skips all that were deleted since the vacuum horizon.
    in_flight_from   bigint NOT NULL DEFAULT 0,

    -- The identity of the process. With it a successor can prove that the process is gone, and need not wait for its lease.
    -- NULL where nothing can be proven, as behind a transaction pooler.
    pod_uid          text,
    -- Host name, boot id and process id namespace: within one of these a process id means one process.
    machine          text,
    pid              bigint,
    -- Process ids are reused. With its start time, in clock ticks since the machine booted, one is unique.
    process_started  bigint,
    -- Every session of the process takes a shared advisory lock under this key: while one is left, the process may live.
    session_key      bigint
) WITH (fillfactor = 50);

-- Lanes 0–63 carry the ordered rows; each is owned by at most one worker. Lane -1 stands for the unordered rows: it has no owner,
-- and its epoch counts how often its floor was lowered.
CREATE TABLE outbox.lane (
    lane           smallint PRIMARY KEY CONSTRAINT lane_is_known CHECK (lane BETWEEN -1 AND 63),
    -- The fencing token: raised whenever a worker takes the lane, valid only together with the owner.
    epoch          bigint NOT NULL DEFAULT 0,
    -- No pending row lies at or below it, except those that outbox.hold names. It may lag, but never lead.
    floor          bigint NOT NULL DEFAULT 0,
    owner          uuid,
    -- The lineage of the server that the lane was last used on, and since when.
    lineage        text,
    lineage_since  timestamptz NOT NULL DEFAULT '-infinity',
    -- The lineage has changed since: any pending row up to this id may have been sent, and its mark lost.
    maybe_sent_until  bigint NOT NULL DEFAULT 0,
    -- Ids of rows that an owner may have sent without learning the outcome: first and last of each range.
    maybe_sent       bigint[] NOT NULL DEFAULT '{}',
    CONSTRAINT unordered_lane_has_no_owner CHECK (lane >= 0 OR owner IS NULL)
) WITH (fillfactor = 30);

INSERT INTO outbox.lane (lane, lineage) SELECT n, l.name FROM generate_series(-1, 63) n, outbox.lineage l;

GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.worker TO outbox_relay;
GRANT SELECT, UPDATE ON outbox.lane TO outbox_relay;

-- ── Rows in flight ─────────────────────────────────────────────────────────────────────────────

-- A worker records what it has in flight batch by batch. If it dies, the worker that takes its lanes flags exactly those rows as
-- possible duplicates.

-- One row per batch of ordered rows: for each lane the lowest and the highest id of what is sent, in more than one range where
-- rows lie far apart. Inserted before anything of the batch is handed to Kafka, deleted by its mark, and never updated: a row
-- that is rewritten grows a chain of versions while an open transaction pins the vacuum horizon.
CREATE TABLE outbox.in_flight (
    -- Drawn in order: see worker.in_flight_from.
    id         bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    worker     uuid NOT NULL,
    lanes      smallint[] NOT NULL,
    first_ids  bigint[] NOT NULL,
    last_ids   bigint[] NOT NULL
);

-- One row per batch of unordered rows, never updated either. While its lease lasts no other worker may claim the rows it names.
-- After that it says that any of them may have been sent: a worker that claims one removes it from here and flags it. Rows are
-- claimed by this table and not by a lease in each row: that update found no room on its page and wrote to every index, which
-- cost more than everything else that is written for a row.
CREATE TABLE outbox.claim (
    -- The fencing token. Drawn in the order of commits, because claims are made one at a time. So a worker need not read below the
    -- lowest id it has read, where deleted claims remain for as long as an open transaction pins the vacuum horizon.
    id           bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    -- '-infinity' once the claim is returned with rows that may have been sent.
    lease_until  timestamptz NOT NULL,
    -- The id in outbox.worker, or NULL once it belongs to no worker.
    worker       uuid,
    ids          bigint[] NOT NULL,
    -- The ids among these that an earlier claim may have sent.
    maybe_sent     bigint[] NOT NULL DEFAULT '{}',
    -- A NULL in the array would make `NOT IN` exclude every row.
    CONSTRAINT claim_names_rows CHECK (cardinality(ids) > 0 AND array_position(ids, NULL) IS NULL)
);

-- Not compressed: compressing takes a millisecond, and the next claim waits for this one.
ALTER TABLE outbox.claim ALTER COLUMN ids SET STORAGE EXTERNAL, ALTER COLUMN maybe_sent SET STORAGE EXTERNAL;

COMMENT ON TABLE outbox.in_flight IS 'Batches of ordered rows in flight: what a successor of their worker flags as possible duplicates.';
COMMENT ON TABLE outbox.claim IS 'Batches of unordered rows that are in flight, or that their worker may have sent.';

GRANT SELECT, INSERT, DELETE ON outbox.in_flight TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.claim TO outbox_relay;

-- ── Holds ──────────────────────────────────────────────────────────────────────────────────────

-- The unpublished rows that a floor may pass: those of one key (unit 'k:' || key), of one explicit partition
-- ('p:' || partition), of one paused partition ('s:3/12') or of a whole topic ('') in one lane.
--
-- A partition without a leader, or with too few replicas in sync, is paused and keeps back its own rows alone. 's:3/12' is
-- partition 3 of a topic that had 12 partitions when it was paused. The count in the hold decides which rows it keeps back, so
-- that no row leaves or joins it when the topic is given more partitions in the meantime.
CREATE TABLE outbox.hold (
    lane          smallint NOT NULL REFERENCES outbox.lane,
    topic         text NOT NULL,
    unit          text NOT NULL,
    -- The row that was refused and will be retried; NULL where the topic or the partition is unavailable.
    head_id       bigint,
    -- The lane's floor when the hold was created: every row that the hold keeps back lies above it.
    resume_floor  bigint NOT NULL,
    failures      integer NOT NULL DEFAULT 1,
    reason        text NOT NULL,
    held_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- 'infinity' waits for an operator.
    retry_at      timestamptz NOT NULL,
    partition     integer GENERATED ALWAYS AS (
        CASE WHEN unit ~ '^s:[0-9]{1,9}/[0-9]{1,9}$' THEN split_part(substr(unit, 3), '/', 1)::integer END) STORED,
    partitions    integer GENERATED ALWAYS AS (
        CASE WHEN unit ~ '^s:[0-9]{1,9}/[0-9]{1,9}$' THEN split_part(unit, '/', 2)::integer END) STORED,
    PRIMARY KEY (lane, topic, unit),
    CONSTRAINT hold_unit_is_a_key_a_partition_or_everything
        CHECK (unit = '' OR unit ~ '^(k:|p:)' OR coalesce(partition < partitions, false))
);

-- A topic that refuses all its keys has thousands of holds. Its paused partitions are found without reading those.
CREATE INDEX hold_of_partition ON outbox.hold (lane, topic) WHERE partition IS NOT NULL;

COMMENT ON COLUMN outbox.hold.partition IS 'The paused partition, where the hold is of one: unit s:partition/partitions.';
COMMENT ON COLUMN outbox.hold.partitions IS 'How many partitions the topic had when this one was paused.';

-- Kafka's murmur2 over the UTF-8 bytes of a record's key, without its sign: modulo the number of partitions it is the partition
-- that the default partitioner of the Java client chooses. Frozen, as Kafka's own is.
CREATE FUNCTION outbox.murmur2(record_key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    data constant bytea := pg_catalog.convert_to(record_key, 'UTF8');
    size constant integer := pg_catalog.length(data);
    tail constant integer := size & -4;
    -- 32 bits of a bigint: a product of two words fits, since the multiplier is below 2^31.
    hash bigint := 2538058380 # size;
    k bigint;
BEGIN
    FOR i IN 0 .. tail - 4 BY 4 LOOP
        k := (get_byte(data, i) | (get_byte(data, i + 1) << 8) | (get_byte(data, i + 2) << 16) | (get_byte(data, i + 3) << 24))
             * 1540483477::bigint & 4294967295;
        hash := (hash * 1540483477 & 4294967295) # ((k # (k >> 24)) * 1540483477 & 4294967295);
    END LOOP;
    IF tail < size THEN
        FOR i IN tail .. size - 1 LOOP
            hash := hash # (get_byte(data, i)::bigint << (8 * (i - tail)));
        END LOOP;
        hash := hash * 1540483477 & 4294967295;
    END IF;
    hash := (hash # (hash >> 13)) * 1540483477 & 4294967295;
    RETURN (hash # (hash >> 15)) & 2147483647;
END $$;

-- The holds that keep a row back, one row each: of its whole topic, of its own key or explicit partition, or of the paused
-- partition it belongs to. PostgreSQL inlines the query in place of the call: each hold is found by its whole primary key, and
-- the hash is computed once, and only where the topic has a paused partition in this lane.
CREATE FUNCTION outbox.holds_of(lane smallint, topic text, key text, partition integer, message_id uuid) RETURNS SETOF text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT h.unit FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = ''
    UNION ALL
    SELECT h.unit FROM outbox.hold h WHERE h.lane = $1 AND h.topic = $2 AND h.unit = coalesce('k:' || $3, 'p:' || $4)
    UNION ALL
    SELECT h.unit FROM outbox.hold h
    WHERE h.lane = $1 AND h.topic = $2 AND h.partition IS NOT NULL
      AND h.partition = coalesce($4, (SELECT outbox.murmur2(coalesce($3, $5::text))) % h.partitions)
$$;

REVOKE ALL ON FUNCTION outbox.murmur2, outbox.holds_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.murmur2, outbox.holds_of TO outbox_relay, outbox_operator;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.hold TO outbox_relay;

-- ── Reading large messages ─────────────────────────────────────────────────────────────────────

-- With these functions the relay reads no more of a row than it can carry (--max-message-bytes): a message of 80 MB that is
-- read whole would end the process, and then its successor.

-- The text of a document, if it has at most this many bytes, else NULL. NULL also if PostgreSQL cannot render it, because it is
-- longer than 1 GB or damaged: one such row must not fail a statement that reads many.
CREATE FUNCTION outbox.render_or_null(value jsonb, bytes_max integer) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    rendered text;
BEGIN
    -- The binary form of a document has at most eight times the bytes of its text: no need to render this one.
    IF pg_catalog.pg_column_size(value) OPERATOR(pg_catalog./) 8 OPERATOR(pg_catalog.>) bytes_max THEN
        RETURN NULL;
    END IF;
    rendered := value::pg_catalog.text;
    RETURN CASE WHEN pg_catalog.octet_length(rendered) OPERATOR(pg_catalog.<=) bytes_max THEN rendered END;
EXCEPTION WHEN program_limit_exceeded OR internal_error OR data_corrupted OR out_of_memory THEN
    RETURN NULL;
END $$;

-- The value, or NULL if it is damaged.
CREATE FUNCTION outbox.read_or_null(value bytea) RETURNS bytea LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    -- The operator reads the value from its TOAST table.
    RETURN value OPERATOR(pg_catalog.||) ''::pg_catalog.bytea;
EXCEPTION WHEN program_limit_exceeded OR internal_error OR data_corrupted OR out_of_memory THEN
    RETURN NULL;
END $$;

-- The value of a column, if it has at most this many bytes, else NULL. PostgreSQL inlines all three in the statement that calls
-- them. None of them reads a value from its TOAST table to learn its size.
CREATE FUNCTION outbox.limit_bytes(value text, bytes_max integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.octet_length(value) OPERATOR(pg_catalog.<=) bytes_max THEN value END
$$;

-- A value that is stored within its row is there to be sent; one in the TOAST table may be damaged.
CREATE FUNCTION outbox.limit_bytes(value bytea, bytes_max integer) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.octet_length(value) OPERATOR(pg_catalog.>) bytes_max THEN NULL
                WHEN pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 2000 THEN value
                ELSE outbox.read_or_null(value) END
$$;

-- Only its text tells how large a document is: compressed values are up to 255 times as large, and a number of 16 bytes can have
-- 131,072 digits. What is stored in 2,000 bytes and not compressed is at most 16 MB of text. Anything else is rendered where an
-- error can be caught.
CREATE FUNCTION outbox.limit_bytes(value jsonb, bytes_max integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 2000 AND pg_catalog.pg_column_compression(value) IS NULL
                THEN value::pg_catalog.text
                ELSE outbox.render_or_null(value, bytes_max) END
$$;

-- Why the relay could not read a message whole: its size, or the error that PostgreSQL raises when it is read.
CREATE FUNCTION outbox.message_size(message bigint, OUT bytes bigint, OUT problem text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT pg_catalog.octet_length(m.payload_bytes OPERATOR(pg_catalog.||) ''::pg_catalog.bytea) INTO bytes
    FROM outbox.message m WHERE m.id OPERATOR(pg_catalog.=) message;
    SELECT coalesce(bytes, 0) OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.payload::pg_catalog.text), 0)
           OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.headers::pg_catalog.text), 0)
           OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.key), 0)
           OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.event_type), 0)
           OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.aggregate_type), 0)
           OPERATOR(pg_catalog.+) coalesce(pg_catalog.octet_length(m.aggregate_id), 0)
    INTO bytes
    FROM outbox.message m WHERE m.id OPERATOR(pg_catalog.=) message;
EXCEPTION WHEN program_limit_exceeded OR internal_error OR data_corrupted OR out_of_memory THEN
    bytes := NULL;
    problem := SQLERRM;
END $$;

REVOKE ALL ON FUNCTION outbox.limit_bytes(text, integer), outbox.limit_bytes(bytea, integer), outbox.limit_bytes(jsonb, integer),
    outbox.render_or_null, outbox.read_or_null, outbox.message_size FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.limit_bytes(text, integer), outbox.limit_bytes(bytea, integer), outbox.limit_bytes(jsonb, integer),
    outbox.render_or_null, outbox.read_or_null, outbox.message_size TO outbox_relay, outbox_operator;

-- ── Arguments and intervals ────────────────────────────────────────────────────────────────────

-- Refuses an argument of a function of this schema: P4004 for one that is out of its limits, other codes for one that is missing.
CREATE FUNCTION outbox.refuse_argument(name text, limits text, code text DEFAULT 'P4004') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is %', refuse_argument.name, CASE WHEN code = 'P4004' THEN 'out of its limits' ELSE 'missing' END
    USING ERRCODE = code, DETAIL = format('%s must be %s.', refuse_argument.name, limits),
          HINT = 'The call itself is wrong: a retry will not help.';
END $$;

-- Intervals are counted in seconds: a day has 24 hours, a month 30 days, a year 365.25 days. In the calendar a day has 23 hours
-- when the clock goes forward and 25 when it goes back, and a long interval leaves the range of timestamps with an error of its
-- own (22008).
CREATE FUNCTION outbox.seconds(span interval) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN date_part('epoch', span);

-- For spans whose range has been checked.
CREATE FUNCTION outbox.later(at timestamptz, span interval) RETURNS timestamptz
LANGUAGE sql STABLE
RETURN at + make_interval(secs => date_part('epoch', span));

-- Checks what a retention function is called with, before any time is computed from it.
CREATE FUNCTION outbox.check_purge_arguments(older_than interval, rows_max integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (outbox.seconds(older_than) BETWEEN 3600 AND 3155760000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('older_than', 'an hour to a hundred years');
    END IF;
    IF (rows_max BETWEEN 1 AND 100000) IS NOT TRUE THEN
        PERFORM outbox.refuse_argument('rows_max', '1 to 100000');
    END IF;
END $$;

REVOKE ALL ON FUNCTION outbox.refuse_argument, outbox.seconds, outbox.later, outbox.check_purge_arguments FROM PUBLIC;

-- ── History and retention ──────────────────────────────────────────────────────────────────────

-- Where on_published = archive puts rows, one partition a day, so that retention is a DROP. No index: a row is written once.
CREATE TABLE outbox.history (
    id                 bigint NOT NULL,
    created_at         timestamptz NOT NULL,
    published_at       timestamptz NOT NULL,
    aggregate_version  bigint,
    message_id         uuid NOT NULL,
    partition          integer,
    attempts           smallint NOT NULL,
    topic              text NOT NULL,
    key                text,
    event_type         text,
    aggregate_type     text,
    aggregate_id       text,
    idempotency_scope  text,
    idempotency_key    text,
    headers            jsonb,
    payload            jsonb,
    payload_bytes      bytea
) PARTITION BY RANGE (published_at);

-- A day without a partition must not stop the relay.
CREATE TABLE outbox.history_default PARTITION OF outbox.history DEFAULT;

-- The relay does not own these tables. It creates and drops partitions through the two functions below, and can do nothing else
-- with them.

-- Creates the partitions of the next days. That locks the default partition exclusively. Every session that comes after a waiting
-- lock request waits as well, so a day that cannot be locked within a tenth of a second is left for the next call.
CREATE FUNCTION outbox.history_prepare(days_ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '4s' AS $$
DECLARE
    today constant date := (now() AT TIME ZONE 'UTC')::date;
    day date;
    part text;
    made integer := 0;
BEGIN
    -- Two replicas must not collide. The second waits, so that it does not publish before the first has made the day.
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
            -- Rows of that day lie in the default partition already, and stay there until they are old: moving them would lock it,
            -- and with it every mark of that day. Retention deletes them row by row instead.
            WHEN check_violation THEN NULL;
            WHEN lock_not_available THEN EXIT;
        END;
    END LOOP;
    RETURN made;
END $$;

-- Drops the partitions of days that are older. That locks the whole history exclusively: where a backup or another reader is in the
-- way, the days are left for the next call, and so is a single day that a session reads. Returns how many were dropped, and how
-- many were left.
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
        -- What a DROP locks beside the day itself: waited for once, not once a day.
        LOCK TABLE ONLY outbox.history, outbox.history_default IN ACCESS EXCLUSIVE MODE;
    EXCEPTION
        WHEN lock_not_available THEN RETURN;
    END;
    FOREACH part IN ARRAY due LOOP
        BEGIN
            -- Other sessions wait for this transaction by now, so it waits for none of them.
            EXECUTE format('LOCK TABLE outbox.%I IN ACCESS EXCLUSIVE MODE NOWAIT', part);
            EXECUTE format('DROP TABLE outbox.%I', part);
            dropped := dropped + 1;
            locked := locked - 1;
        EXCEPTION
            WHEN lock_not_available THEN NULL;
        END;
    END LOOP;
END $$;

-- One bounded step of retention, by id, above the row that the step before reached. It removes only what is published and old
-- enough, never a pending or dead row. Returns where it stopped, how many rows it removed, and whether all that follows is too
-- young.
CREATE FUNCTION outbox.purge_message(older_than interval, after bigint DEFAULT 0, rows_max integer DEFAULT 2000,
                                     OUT reached bigint, OUT purged bigint, OUT young boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM outbox.check_purge_arguments(older_than, rows_max);
    WITH chunk AS MATERIALIZED (
        SELECT m.id, m.published_at, m.created_at FROM outbox.message m WHERE m.id > after ORDER BY m.id LIMIT rows_max
    ), gone AS (
        -- By an array of ids, not by a join: a join may scan the whole table.
        DELETE FROM outbox.message m
        WHERE m.id = ANY (ARRAY(
            -- Rows that are locked are left for the next pass: other sessions would queue up behind a waiting purge.
            SELECT o.id FROM outbox.message o
            WHERE o.id = ANY (ARRAY(SELECT c.id FROM chunk c WHERE c.published_at < clock_timestamp() - older_than))
              AND o.published_at < clock_timestamp() - older_than
            FOR UPDATE SKIP LOCKED))
        RETURNING m.id
    )
    SELECT max(c.id), (SELECT count(*) FROM gone),
           -- Once every row of a chunk is this young, no later row can be old enough.
           coalesce(min(c.created_at) > clock_timestamp() - older_than, true)
    INTO reached, purged, young
    FROM chunk c;
END $$;

REVOKE ALL ON FUNCTION outbox.history_prepare, outbox.history_expire, outbox.purge_message FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.history_prepare, outbox.history_expire, outbox.purge_message TO outbox_relay, outbox_operator;
GRANT SELECT, INSERT ON outbox.history TO outbox_relay;

-- ── Operators ──────────────────────────────────────────────────────────────────────────────────

-- Operators change messages and holds through functions alone. With UPDATE or DELETE on the tables an operator could mark a
-- pending row published, or strand one that a floor has passed.

-- Sends dead letters again, once the reason for their refusal is fixed. Returns how many; rows that are not dead are left alone.
-- A floor may have passed such a row: available_at puts it where delayed rows are found. Where rows of its key have waited behind
-- it, the relay tries it at once and then continues the key in order.
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

-- Removes dead letters for good. Returns how many; a pending or published row is never removed. A key that waited behind one
-- continues: the relay finds the row gone.
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

-- Makes a hold due now: of a key, of an explicit partition, or with neither of the topic as a whole. A head that is pending is
-- tried again. A head that is dead stays dead, and the rows behind it are sent. Returns how many holds there were.
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

REVOKE ALL ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.redrive, outbox.discard, outbox.release_hold TO outbox_operator;

-- The backlog by topic. Reads what lies above the floors, not the published rows below them.
CREATE VIEW outbox.message_pending AS
SELECT p.topic, count(*) AS pending,
       count(*) FILTER (WHERE p.available_at > clock_timestamp()) AS delayed,
       max(p.attempts) AS attempts_max,
       min(p.created_at) AS oldest_created_at,
       clock_timestamp() - min(p.created_at) AS oldest_age
FROM (
    SELECT m.topic, m.available_at, m.attempts, m.created_at FROM outbox.message m
    WHERE m.id > least((SELECT min(l.floor) FROM outbox.lane l), (SELECT min(h.resume_floor) FROM outbox.hold h))
      AND m.published_at IS NULL AND m.dead_at IS NULL AND m.available_at IS NULL
    UNION ALL
    SELECT m.topic, m.available_at, m.attempts, m.created_at FROM outbox.message m WHERE m.available_at IS NOT NULL
) AS p
GROUP BY p.topic;

-- Of this migration's tables and views; later migrations grant their own.
GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_operator;
