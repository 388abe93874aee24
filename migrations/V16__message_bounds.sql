-- Oldest outboxd schema that may run on this: 13
--
-- A message of any size used to be read whole by the relay: one row of 80 MB ended the process, and then its successor. Here are bounds for
-- what an application writes, and the functions with which the relay reads no more than it can carry (--max-message-bytes).

-- The text of a document, if it has no more than so many bytes. NULL also if PostgreSQL cannot say it, because it is longer than 1 GB or
-- damaged: in a statement that reads many rows, that must not be the end of all of them.
CREATE FUNCTION outbox.render_alone(value jsonb, most integer) RETURNS text LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    rendered text;
BEGIN
    -- A document in binary has at most eight times the bytes of its text: no need to render this one.
    IF pg_catalog.pg_column_size(value) OPERATOR(pg_catalog./) 8 OPERATOR(pg_catalog.>) most THEN
        RETURN NULL;
    END IF;
    rendered := value::pg_catalog.text;
    RETURN CASE WHEN pg_catalog.octet_length(rendered) OPERATOR(pg_catalog.<=) most THEN rendered END;
EXCEPTION WHEN program_limit_exceeded OR internal_error OR data_corrupted OR out_of_memory THEN
    RETURN NULL;
END $$;

CREATE FUNCTION outbox.read_alone(value bytea) RETURNS bytea LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    -- The operator reads it from outside of its row.
    RETURN value OPERATOR(pg_catalog.||) ''::pg_catalog.bytea;
EXCEPTION WHEN program_limit_exceeded OR internal_error OR data_corrupted OR out_of_memory THEN
    RETURN NULL;
END $$;

-- What a row has of these columns, if that is no more than so many bytes, else NULL. PostgreSQL expands all three in the statement that calls
-- them; none of them reads a value from outside of its row to learn its size.
CREATE FUNCTION outbox.at_most(value text, most integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.octet_length(value) OPERATOR(pg_catalog.<=) most THEN value END
$$;

-- A value stored within its row is there to be sent; one outside of it may be damaged.
CREATE FUNCTION outbox.at_most(value bytea, most integer) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.octet_length(value) OPERATOR(pg_catalog.>) most THEN NULL
                WHEN pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 2000 THEN value
                ELSE outbox.read_alone(value) END
$$;

-- How large a document is, only its text tells: compressed values are up to 255 times as large, and a number of 16 bytes can have 131,072
-- digits. What is stored in 2,000 bytes and not compressed is at most 16 MB of text; anything else is rendered where that can go wrong alone.
CREATE FUNCTION outbox.at_most(value jsonb, most integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.pg_column_size(value) OPERATOR(pg_catalog.<=) 2000 AND pg_catalog.pg_column_compression(value) IS NULL
                THEN value::pg_catalog.text
                ELSE outbox.render_alone(value, most) END
$$;

-- Why the relay could not read a message whole: its size, or what PostgreSQL says when it is read.
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

REVOKE ALL ON FUNCTION outbox.at_most(text, integer), outbox.at_most(bytea, integer), outbox.at_most(jsonb, integer),
    outbox.render_alone, outbox.read_alone, outbox.message_size FROM PUBLIC;
GRANT EXECUTE ON FUNCTION outbox.at_most(text, integer), outbox.at_most(bytea, integer), outbox.at_most(jsonb, integer),
    outbox.render_alone, outbox.read_alone, outbox.message_size TO outbox_relay, outbox_operator;

-- The rules of V11, and bounds for every text that an application writes beside the payload. All of these become headers of the record: what
-- has a megabyte belongs in the payload.
CREATE OR REPLACE FUNCTION outbox.message_enters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    broken text := CASE
        -- Not '^[…]{1,249}$': a bounded repetition costs 35 µs a row.
        WHEN NEW.topic OPERATOR(pg_catalog.~) '[^a-zA-Z0-9._-]|^[.]?[.]?$'
                OR pg_catalog.octet_length(NEW.topic) OPERATOR(pg_catalog.>) 249
            THEN 'message_topic_is_a_legal_kafka_name'
        -- Which one it is, is asked of those that are refused.
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
            -- Always by their text: a number of 16 bytes can have 131,072 digits.
            WHEN pg_catalog.octet_length(NEW.headers::pg_catalog.text) OPERATOR(pg_catalog.>) 65536
                THEN 'message_headers_are_at_most_65536_bytes'
        END;
    END IF;
    -- Named as the constraints they used to be: an application that knows one by its name still does.
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
