-- The outbox: what applications write, what the relay owns, and who may do which.
--
-- The life of a row in outbox.message, enforced by the CHECKs below:
--
--   pending ──(acknowledged)──▶ published   published_at set, or the row deleted / moved to history
--      │  ▲
--      │  └──(redriven)──────┐
--      └──(refused for good)─▶ dead          dead_at set
--
-- A pending row may further be delayed (available_at in the future), leased (claim_token, rows
-- without a key only) or held (its key or topic has a row in outbox.hold). None of these is a state
-- of its own: each ends by itself or with its owner.

CREATE TABLE outbox.message (
    -- Wide fixed columns first: no padding, so the application's INSERT writes fewer bytes.
    id                 bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    available_at       timestamptz,
    published_at       timestamptz,
    dead_at            timestamptz,
    lease_until        timestamptz,
    aggregate_version  bigint,
    message_id         uuid NOT NULL DEFAULT gen_random_uuid(),
    claim_token        uuid,
    partition          integer,
    attempts           smallint NOT NULL DEFAULT 0,
    -- Which line the row stands in. Rows with the same key share a lane; so do rows without a key but
    -- with the same explicit partition. NULL: no order asked for. The expression is frozen: changing it
    -- would put one key's old and new rows into two lanes.
    lane               smallint GENERATED ALWAYS AS ((
                           CASE WHEN key IS NOT NULL THEN hashtextextended(key COLLATE "C", 0)
                                WHEN partition IS NOT NULL THEN hashtextextended(topic COLLATE "C", partition)
                           END & 63)::smallint) STORED,
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

    -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row, this 0.7.
    CONSTRAINT message_topic_is_a_legal_kafka_name
        CHECK (topic !~ '[^a-zA-Z0-9._-]' AND octet_length(topic) BETWEEN 1 AND 249 AND topic <> '.' AND topic <> '..'),
    CONSTRAINT message_key_is_at_most_1024_bytes
        CHECK (octet_length(key) <= 1024),
    CONSTRAINT message_partition_is_not_negative
        CHECK (partition >= 0),
    CONSTRAINT message_has_one_payload_at_most
        CHECK (payload IS NULL OR payload_bytes IS NULL),
    CONSTRAINT message_without_payload_is_a_tombstone_and_needs_a_key
        CHECK (payload IS NOT NULL OR payload_bytes IS NOT NULL OR key IS NOT NULL),
    CONSTRAINT message_headers_are_a_json_object
        CHECK (jsonb_typeof(headers) = 'object'),
    CONSTRAINT message_headers_do_not_use_the_relays_names
        CHECK (NOT headers ?| ARRAY['message-id', 'event-type', 'aggregate-type', 'aggregate-id',
                                    'aggregate-version', 'possible-duplicate']),
    -- NULLs never collide in a unique index: a key without scope or type would let duplicates in.
    CONSTRAINT message_idempotency_key_needs_scope_and_event_type
        CHECK (idempotency_key IS NULL OR (idempotency_scope IS NOT NULL AND event_type IS NOT NULL)),
    CONSTRAINT message_attempts_are_not_negative
        CHECK (attempts >= 0),
    CONSTRAINT message_is_not_both_published_and_dead
        CHECK (published_at IS NULL OR dead_at IS NULL),
    CONSTRAINT message_that_is_published_or_dead_waits_for_nothing
        CHECK ((published_at IS NULL AND dead_at IS NULL)
               OR (available_at IS NULL AND claim_token IS NULL AND lease_until IS NULL)),
    -- Keyed rows are protected by their lane's lease; a row lease on them would be a second owner.
    CONSTRAINT message_lease_is_for_rows_without_a_lane
        CHECK ((claim_token IS NULL AND lease_until IS NULL) OR (lane IS NULL AND lease_until IS NOT NULL))
)
-- Room on the page lets the mark of `keep` be a HOT update: no index is touched.
WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
      autovacuum_analyze_scale_factor = 0.05);

-- No column that a mark writes is in an index or in a predicate here (that would end HOT), but for two that pay:
-- available_at, which a mark only ever sets to NULL, and dead_at, which marks leave alone.
CREATE UNIQUE INDEX message_message_id ON outbox.message (message_id);
CREATE INDEX message_lane ON outbox.message (lane, id) WHERE lane IS NOT NULL;
CREATE INDEX message_without_lane ON outbox.message (id) WHERE lane IS NULL;
CREATE INDEX message_delayed ON outbox.message (available_at, id) WHERE available_at IS NOT NULL;
CREATE INDEX message_dead ON outbox.message (dead_at) WHERE dead_at IS NOT NULL;
CREATE UNIQUE INDEX message_idempotency ON outbox.message (idempotency_scope, idempotency_key, event_type)
    WHERE idempotency_key IS NOT NULL;

COMMENT ON TABLE outbox.message IS 'Insert here in your own transaction; outboxd carries the row to Kafka once it commits.';
COMMENT ON COLUMN outbox.message.id IS 'Row order. Drawn by the database; never set it.';
COMMENT ON COLUMN outbox.message.message_id IS 'The dedup key that travels with the record (header message-id).';
COMMENT ON COLUMN outbox.message.available_at IS 'Not before this time; NULL = at once. The row joins the line of its key when due.';
COMMENT ON COLUMN outbox.message.attempts IS 'How often Kafka refused this very row. An outage never counts.';

-- Which life of this server it is: changes with every start, and when a crash of one backend made the server recover in
-- place (that leaves the start time alone, but discards the statistics). Ids and floors of another life mean nothing:
-- after a crash ids can come again.
CREATE VIEW outbox.server AS
SELECT greatest(pg_postmaster_start_time(), stats_reset) AS incarnation FROM pg_stat_archiver;

-- One row per relay process. Its lease covers every lane it owns, so that renewing writes one row, not 64.
CREATE TABLE outbox.worker (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    version      text NOT NULL,
    -- The most rows of one lane it ever has in flight: what a successor must suspect of being repeats.
    lane_batch   integer NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until  timestamptz NOT NULL,
    -- Once set, for good: the worker owns nothing any more, whatever outbox.lane says.
    stopped_at   timestamptz
) WITH (fillfactor = 50);

-- Lanes 0–63 carry the keyed rows, each owned by at most one worker. Lane -1 stands for the rows without a
-- lane: nobody owns it; its epoch counts how often its floor was lowered.
CREATE TABLE outbox.lane (
    lane          smallint PRIMARY KEY CONSTRAINT lane_is_known CHECK (lane BETWEEN -1 AND 63),
    -- The fencing token: raised by every take, valid only together with the owner.
    epoch         bigint NOT NULL DEFAULT 0,
    -- Nothing pending lies at or below it, but what outbox.hold names. It may lag, never lead.
    floor         bigint NOT NULL DEFAULT 0,
    owner         uuid,
    -- How many of the next rows may already have been sent by an owner that could not say.
    suspect_rows  integer NOT NULL DEFAULT 0,
    taken_at      timestamptz,
    CONSTRAINT lane_without_key_has_no_owner CHECK (lane >= 0 OR owner IS NULL)
) WITH (fillfactor = 30);

INSERT INTO outbox.lane (lane) SELECT generate_series(-1, 63);

-- What a floor may pass although it is unpublished: the rows of one key (unit 'k:' || key), of one explicit
-- partition ('p:' || partition) or of a whole topic ('') in one lane.
CREATE TABLE outbox.hold (
    lane          smallint NOT NULL REFERENCES outbox.lane,
    topic         text NOT NULL,
    unit          text NOT NULL,
    -- The row whose refusal is waited out; NULL where a topic as a whole is sick.
    head_id       bigint,
    -- The lane's floor when the hold was taken: everything the hold kept back lies above it.
    resume_floor  bigint NOT NULL,
    failures      integer NOT NULL DEFAULT 1,
    reason        text NOT NULL,
    held_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- 'infinity' waits for an operator.
    retry_at      timestamptz NOT NULL,
    PRIMARY KEY (lane, topic, unit),
    CONSTRAINT hold_unit_is_a_key_a_partition_or_everything CHECK (unit = '' OR unit ~ '^(k:|p:)')
);

-- Where `on_published = archive` puts rows; by day, so that retention is a DROP. No index: it is written once.
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

-- A day nobody prepared must not stop the relay.
CREATE TABLE outbox.history_default PARTITION OF outbox.history DEFAULT;

-- The relay is not the owner, so it prepares and drops days through these two, and can do nothing else with them.
CREATE FUNCTION outbox.history_prepare(days_ahead integer DEFAULT 3) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    day date;
    part text;
    made integer := 0;
BEGIN
    -- Two replicas preparing at once must not collide.
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.history', 0));
    FOR day IN SELECT generate_series((now() AT TIME ZONE 'UTC')::date, (now() AT TIME ZONE 'UTC')::date + days_ahead, '1 day')::date LOOP
        part := 'history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('outbox.' || part) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE TABLE outbox.%I PARTITION OF outbox.history FOR VALUES FROM (%L) TO (%L)',
                           part, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
            made := made + 1;
        EXCEPTION WHEN check_violation THEN
            -- Rows of that day already lie in the default partition: they stay there, and so does the day.
            NULL;
        END;
    END LOOP;
    RETURN made;
END $$;

CREATE FUNCTION outbox.history_drop(older_than interval) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part name;
    dropped integer := 0;
BEGIN
    IF older_than < interval '1 hour' THEN
        RAISE EXCEPTION 'history_drop keeps at least an hour, got %', older_than USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR part IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'outbox.history'::regclass AND c.relname ~ '^history_\d{8}$'
          AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (now() - older_than) AT TIME ZONE 'UTC'
    LOOP
        EXECUTE format('DROP TABLE outbox.%I', part);
        dropped := dropped + 1;
    END LOOP;
    DELETE FROM outbox.history_default WHERE published_at < now() - older_than;
    RETURN dropped;
END $$;

-- The same INSERT as a call, for those who like names better than column lists. Returns the message id.
CREATE FUNCTION outbox.enqueue(
    topic text, key text DEFAULT NULL, payload jsonb DEFAULT NULL, payload_bytes bytea DEFAULT NULL,
    headers jsonb DEFAULT NULL, event_type text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, aggregate_version bigint DEFAULT NULL,
    idempotency_scope text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, partition integer DEFAULT NULL, message_id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    -- Not RETURNING: that would need SELECT, which a producer does not have.
    new_id uuid := coalesce(message_id, gen_random_uuid());
BEGIN
    INSERT INTO outbox.message (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
                                aggregate_version, idempotency_scope, idempotency_key, available_at, partition, message_id)
    VALUES (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id,
            aggregate_version, idempotency_scope, idempotency_key, available_at, partition, new_id);
    RETURN new_id;
END $$;

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
REVOKE ALL ON FUNCTION outbox.enqueue, outbox.history_prepare, outbox.history_drop FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO outbox_producer, outbox_relay, outbox_operator;

-- Column by column: with INSERT on the whole table, COPY writes any id through GENERATED ALWAYS.
GRANT INSERT (topic, key, payload, payload_bytes, headers, event_type, aggregate_type, aggregate_id, aggregate_version,
              idempotency_scope, idempotency_key, available_at, partition, message_id)
    ON outbox.message TO outbox_producer;
GRANT EXECUTE ON FUNCTION outbox.enqueue TO outbox_producer;

GRANT SELECT, DELETE, UPDATE (available_at, published_at, dead_at, lease_until, claim_token, attempts, last_error)
    ON outbox.message TO outbox_relay;
GRANT SELECT ON SEQUENCE outbox.message_id_seq TO outbox_relay, outbox_operator;
GRANT SELECT, UPDATE ON outbox.lane TO outbox_relay;
GRANT SELECT ON outbox.server TO outbox_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.worker, outbox.hold TO outbox_relay;
GRANT SELECT, INSERT ON outbox.history TO outbox_relay;
GRANT EXECUTE ON FUNCTION outbox.history_prepare, outbox.history_drop TO outbox_relay, outbox_operator;

GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_operator;
GRANT DELETE, UPDATE (available_at, published_at, dead_at, attempts, last_error) ON outbox.message TO outbox_operator;
GRANT UPDATE (retry_at) ON outbox.hold TO outbox_operator;
GRANT SELECT ON outbox.schema_history TO outbox_relay;
