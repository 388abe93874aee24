-- What a message must be when it is written, and its lane, are said by a trigger of the INSERT, no longer by a CHECK and a generated
-- column: PostgreSQL reads and plans both of those anew in every statement, a mark's as well, and holds each row that is marked
-- against rules about columns that no mark may change. What a trigger says is kept by the session. CHECKs are left for what can change.

-- Every name in it with its schema: the search_path is the application's.
CREATE FUNCTION outbox.message_enters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- Named as the constraints they used to be: an application that knows one by its name still does.
    broken constant text := CASE
        -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row, this 0.7.
        WHEN NEW.topic OPERATOR(pg_catalog.~) '[^a-zA-Z0-9._-]'
                OR NEW.topic OPERATOR(pg_catalog.=) '' OR pg_catalog.octet_length(NEW.topic) OPERATOR(pg_catalog.>) 249
                OR NEW.topic OPERATOR(pg_catalog.=) '.' OR NEW.topic OPERATOR(pg_catalog.=) '..'
            THEN 'message_topic_is_a_legal_kafka_name'
        WHEN pg_catalog.octet_length(NEW.key) OPERATOR(pg_catalog.>) 1024
            THEN 'message_key_is_at_most_1024_bytes'
        WHEN NEW.partition OPERATOR(pg_catalog.<) 0
            THEN 'message_partition_is_not_negative'
        WHEN NEW.payload IS NOT NULL AND NEW.payload_bytes IS NOT NULL
            THEN 'message_has_one_payload_at_most'
        WHEN NEW.payload IS NULL AND NEW.payload_bytes IS NULL AND NEW.key IS NULL
            THEN 'message_without_payload_is_a_tombstone_and_needs_a_key'
        WHEN pg_catalog.jsonb_typeof(NEW.headers) OPERATOR(pg_catalog.<>) 'object'
            THEN 'message_headers_are_a_json_object'
        WHEN NEW.headers OPERATOR(pg_catalog.?|) ARRAY['message-id', 'event-type', 'aggregate-type', 'aggregate-id',
                                                       'aggregate-version', 'possible-duplicate']
            THEN 'message_headers_do_not_use_the_relays_names'
        -- NULLs never collide in a unique index: a key without scope or type would let duplicates in.
        WHEN NEW.idempotency_key IS NOT NULL AND (NEW.idempotency_scope IS NULL OR NEW.event_type IS NULL)
            THEN 'message_idempotency_key_needs_scope_and_event_type'
        WHEN NEW.attempts OPERATOR(pg_catalog.<) 0
            THEN 'message_attempts_are_not_negative'
        WHEN NEW.claim_token IS NOT NULL OR NEW.lease_until IS NOT NULL
            THEN 'message_is_claimed_by_a_record'
    END;
BEGIN
    IF broken IS NOT NULL THEN
        RAISE check_violation USING
            MESSAGE = pg_catalog.format('new row for relation "message" violates check constraint "%s"', broken),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = broken;
    END IF;
    -- The line the row stands in, as V1 says. Frozen: another answer would put one key's old and new rows into two lanes.
    NEW.lane := CASE
        WHEN NEW.key IS NOT NULL
            THEN pg_catalog.hashtextextended(NEW.key COLLATE pg_catalog."C", 0) OPERATOR(pg_catalog.&) 63
        WHEN NEW.partition IS NOT NULL
            THEN pg_catalog.hashtextextended(NEW.topic COLLATE pg_catalog."C", NEW.partition) OPERATOR(pg_catalog.&) 63
    END;
    RETURN NEW;
END $$;

CREATE FUNCTION outbox.message_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE object_not_in_prerequisite_state USING
        MESSAGE = 'topic, key, partition, lane, claim_token and lease_until of a message never change',
        HINT = 'The order of its key depends on where it stands: insert a new message and delete this one.';
END $$;

REVOKE ALL ON FUNCTION outbox.message_enters, outbox.message_stays FROM PUBLIC;

-- NOT VALID: all rows are so already, by the rules that go, and reading them would keep applications waiting.
ALTER TABLE outbox.message
    ALTER COLUMN lane DROP EXPRESSION,
    DROP CONSTRAINT message_is_of_a_lawful_state,
    ADD CONSTRAINT message_is_not_two_of_delayed_published_and_dead
        CHECK (num_nonnulls(available_at, published_at, dead_at) <= 1) NOT VALID,
    -- A row that came in past the trigger is refused, rather than relayed out of order.
    ADD CONSTRAINT message_with_a_key_or_a_partition_has_a_lane
        CHECK (lane IS NOT NULL OR (key IS NULL AND partition IS NULL)) NOT VALID;

DROP DOMAIN outbox.message_state;
DROP TYPE outbox.message_record;

-- Triggers fire in the order of their names: the last of them sees the row as it will be, whatever others of yours make of it.
CREATE TRIGGER zz_message_enters BEFORE INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION outbox.message_enters();
-- Of the statement, not of its rows: for one of rows every mark would lock each row beforehand, though it names none of these columns.
-- The last two for replicas of a version before V6, which would claim rows by them.
CREATE TRIGGER message_stays BEFORE UPDATE OF topic, key, partition, lane, claim_token, lease_until ON outbox.message
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.message_stays();
-- Also where a session has said session_replication_role = replica, as some tools do to load rows faster.
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER zz_message_enters, ENABLE ALWAYS TRIGGER message_stays;
