-- That a row with a key or a partition has a lane is no longer asked of every row in every statement: PostgreSQL reads and plans a CHECK
-- anew each time, in the application's INSERT and in each mark, for a row that can only come from whoever disabled the trigger
-- of V9. The relay refuses to send such a row, and says so in its last_error.
ALTER TABLE outbox.message DROP CONSTRAINT message_with_a_key_or_a_partition_has_a_lane;

-- The rules of V9 and its lanes, for less: PL/pgSQL readies each expression that it comes to anew in every transaction, every function
-- in it, called or not. So what few messages have is asked of those only, and last; a lane is computed in the type of its column.
CREATE OR REPLACE FUNCTION outbox.message_enters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken text := CASE
        -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row.
        WHEN NEW.topic OPERATOR(pg_catalog.~) '[^a-zA-Z0-9._-]|^[.]?[.]?$'
                OR pg_catalog.octet_length(NEW.topic) OPERATOR(pg_catalog.>) 249
            THEN 'message_topic_is_a_legal_kafka_name'
        WHEN pg_catalog.octet_length(NEW.key) OPERATOR(pg_catalog.>) 1024
            THEN 'message_key_is_at_most_1024_bytes'
        WHEN NEW.payload IS NOT NULL AND NEW.payload_bytes IS NOT NULL
            THEN 'message_has_one_payload_at_most'
        WHEN NEW.payload IS NULL AND NEW.payload_bytes IS NULL AND NEW.key IS NULL
            THEN 'message_without_payload_is_a_tombstone_and_needs_a_key'
        -- NULLs never collide in a unique index: a key without scope or type would let duplicates in.
        WHEN NEW.idempotency_key IS NOT NULL AND (NEW.idempotency_scope IS NULL OR NEW.event_type IS NULL)
            THEN 'message_idempotency_key_needs_scope_and_event_type'
        WHEN NEW.attempts OPERATOR(pg_catalog.<) 0
            THEN 'message_attempts_are_not_negative'
        WHEN NEW.claim_token IS NOT NULL OR NEW.lease_until IS NOT NULL
            THEN 'message_is_claimed_by_a_record'
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
        END;
    END IF;
    -- Named as the constraints they used to be: an application that knows one by its name still does.
    IF broken IS NOT NULL THEN
        RAISE check_violation USING
            MESSAGE = pg_catalog.format('new row for relation "message" violates check constraint "%s"', broken),
            SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = broken;
    END IF;
    -- The line the row stands in, as V1 says. Frozen: another answer would put one key's old and new rows into two lanes.
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
